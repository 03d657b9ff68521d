// Live events of the server, with a state that the page shows.
import { signal } from "./html.js";
import { BASE, toLogin } from "./api.js";
import { refresh } from "./session.js";

// connection is what the page's streams are, taken together: "none", "live", "connecting" or "lost".
export const connection = signal("none");

const open = new Map(); // a stream's own state, by its handle
const patience = 8000;  // ms without a connection, then it is "lost"
const firstPause = 500;
const longestPause = 15000;
const unseen = 2000;    // ms a tab may be out of sight before its streams are closed

function set(handle, state, onState) {
  if (open.get(handle) === state) return;
  if (state) open.set(handle, state);
  else open.delete(handle);
  const all = [...open.values()];
  connection.value = all.length === 0 ? "none"
    : all.includes("lost") ? "lost" : all.includes("connecting") ? "connecting" : "live";
  if (state) onState?.(state);
}

// stream opens GET /api/v1 + path as server-sent events. on maps names of events to functions of their data.
// The browser sends Last-Event-ID itself while it reconnects. Where it gives up (the server was away, or refused), and
// where we had closed the stream because nobody looked at the tab, we begin anew: on.resync is called then, as if the
// server had sent it. Returns close().
export function stream(path, on, { onState } = {}) {
  const handle = Symbol(path);
  let source = null, timer = 0, lostTimer = 0, pause = firstPause, begun = false, closed = false;

  const connect = () => {
    if (closed) return;
    let anew = begun;
    source = new EventSource(BASE + path);
    source.onopen = () => {
      begun = true;
      clearTimeout(lostTimer);
      lostTimer = 0;
      pause = firstPause;
      set(handle, "live", onState);
      if (anew) on.resync?.({});
      anew = false;
    };
    source.onerror = () => {
      waiting();
      if (source.readyState === EventSource.CLOSED) retry();
    };
    for (const [name, fn] of Object.entries(on)) source.addEventListener(name, (e) => closed || deliver(name, fn, e));
  };
  const waiting = () => {
    if (open.get(handle) === "lost") return;
    set(handle, "connecting", onState);
    if (!lostTimer) lostTimer = setTimeout(() => set(handle, "lost", onState), patience);
  };
  const retry = () => {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      if (closed || document.hidden) return;
      // An EventSource does not say why it was refused. A session that ended must lead to the login page.
      const now = await refresh();
      if (now.loaded && !now.authenticated) toLogin();
      else connect();
    }, pause * (0.75 + Math.random() / 2));
    pause = Math.min(pause * 2, longestPause);
  };
  // A browser has six connections for one server over HTTP/1.1, shared by all tabs: a tab that nobody sees gives its own
  // back.
  const seen = () => {
    clearTimeout(timer);
    if (!document.hidden) {
      if (!source || source.readyState === EventSource.CLOSED) { waiting(); connect(); }
      return;
    }
    timer = setTimeout(() => {
      source?.close();
      clearTimeout(lostTimer);
      lostTimer = 0;
    }, unseen);
  };

  // A page that is left may be kept, with its connections, for the way back to it: five such pages, and nothing can be
  // loaded any more. It connects again when it is shown again.
  const left = () => {
    clearTimeout(timer);
    source?.close();
  };

  document.addEventListener("visibilitychange", seen);
  addEventListener("pagehide", left);
  addEventListener("pageshow", seen);
  waiting();
  connect();
  return () => {
    closed = true;
    document.removeEventListener("visibilitychange", seen);
    removeEventListener("pagehide", left);
    removeEventListener("pageshow", seen);
    clearTimeout(timer);
    clearTimeout(lostTimer);
    source?.close();
    set(handle, "", null);
  };
}

function deliver(name, fn, e) {
  let data = {};
  try {
    if (e.data) data = JSON.parse(e.data);
  } catch (err) {
    console.error("an event that is no JSON:", name, err);
    return;
  }
  fn(data, e.lastEventId);
}
