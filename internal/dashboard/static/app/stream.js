// Server-sent events, with a connection state that the page shows. All tabs share the connections through a worker;
// hidden tabs release theirs.
import { signal } from "./html.js";
import { BASE, toLogin } from "./api.js";
import { refresh } from "./session.js";
import { Hub } from "./streamhub.js";

// connection is the overall state of the page's streams: "none", "live", "connecting", "waiting" (other windows use
// all permitted streams), "polling" (something between holds streams back) or "lost".
export const connection = signal("none");

const patience = 8000; // ms without a connection until "lost"
const unseen = 2000;   // ms until a hidden tab releases its streams
const sign = 10_000;   // ms between two heartbeats
const polls = 5000;    // ms between polls without a connection

const looks = new Map(); // subscriptions by name
let names = 0;
let hub = null;          // takes (wants, focused)
let shown = !document.hidden;
let timer = 0;

function begin() {
  if (hub) return;
  const alone = () => { // one hub per tab in browsers without shared workers
    hub = new Hub((path) => new EventSource(BASE + path)).attach(take);
  };
  setInterval(() => tell(), sign);
  addEventListener("focus", () => tell(true));
  if (!globalThis.SharedWorker) {
    alone();
    return;
  }
  const worker = new SharedWorker(new URL("./streamworker.js", import.meta.url), { type: "module", name: "tranche" });
  worker.port.onmessage = ({ data }) => take(data);
  worker.onerror = () => {
    alone();
    tell(true);
  };
  hub = (wants, focused) => worker.port.postMessage({ wants, focused });
}

function tell(focused = false) {
  hub?.(shown ? Object.fromEntries([...looks].map(([name, l]) => [name, l.path])) : {}, focused);
}

function take({ to, state, joined, name, data, id }) {
  const look = looks.get(to);
  if (!look || !shown) return;
  if (state) look.set(state);
  else if (joined) look.join();
  else if (look.on[name]) deliver(name, look.on[name], data, id);
}

function see(now) {
  clearTimeout(timer);
  if (now && !shown) for (const look of looks.values()) look.set("connecting");
  shown = now;
  tell(now);
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (document.hidden) timer = setTimeout(see, unseen, false);
  else {
    refresh(); // another tab may have logged out, or in as another user
    see(true);
  }
});
// A page that is left may be cached for the way back.
addEventListener("pagehide", () => see(false));
addEventListener("pageshow", () => see(!document.hidden));

// stream subscribes to the events of GET /api/v1 + path while the tab is visible. on maps event names to functions of
// their data. on.resync is called, as if sent by the server, when events may have been missed. poll fetches the same when nothing
// comes. Returns close().
export function stream(path, on, { onState, poll } = {}) {
  begin();
  const look = new Look(path, on, onState, poll);
  const name = String(++names);
  looks.set(name, look);
  look.set("connecting");
  tell(document.hasFocus());
  return () => {
    looks.delete(name);
    look.close();
    tell();
  };
}

class Look {
  constructor(path, on, onState, poll) {
    Object.assign(this, { path, on, onState, poll, state: "", begun: false, timer: 0 });
  }

  join() {
    if (this.begun) this.on.resync?.({});
    this.begun = true;
  }

  set(state) {
    if (state === "refused") {
      this.#refused();
      state = "connecting";
    }
    if (state !== "connecting") {
      clearTimeout(this.timer);
      this.timer = 0;
    } else if (this.state === "lost" || this.state === "polling") return;
    else this.timer ||= setTimeout(() => this.#without(), patience);
    this.#show(state);
  }

  close() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.onState = null;
    sum();
  }

  // A proxy may hold back streams, but not answers.
  async #without() {
    const found = shown && await this.poll?.().then(() => true, () => false);
    if (!this.timer) return; // closed, or connected
    this.#show(found ? "polling" : "lost");
    if (this.poll) this.timer = setTimeout(() => this.#without(), polls);
  }

  #show(state) {
    if (state === this.state) return;
    this.state = state;
    sum();
    this.onState?.(state);
  }

  // A stream does not tell why it was refused. An ended session must lead to the login page.
  async #refused() {
    const now = await refresh();
    if (now.loaded && !now.authenticated) toLogin();
  }
}

function sum() {
  const all = [...looks.values()].map((l) => l.state);
  connection.value = ["lost", "connecting", "waiting", "polling", "live"].find((state) => all.includes(state)) ?? "none";
}

function deliver(name, fn, text, id) {
  let data = {};
  try {
    if (text) data = JSON.parse(text);
  } catch (err) {
    console.error("an event that is not JSON:", name, err);
    return;
  }
  fn(data, id);
}
