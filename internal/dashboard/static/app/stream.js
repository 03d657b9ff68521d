// Live events of the server, with a state that the page shows. All tabs share the connections: a worker holds them, and
// a tab that no one sees looks at none.
import { signal } from "./html.js";
import { BASE, toLogin } from "./api.js";
import { refresh } from "./session.js";
import { Hub } from "./streamhub.js";

// connection is what the page's streams are, taken together: "none", "live", "connecting", "waiting" (other windows
// have all the streams that there may be) or "lost".
export const connection = signal("none");

const patience = 8000; // ms without a connection, then it is "lost"
const unseen = 2000;   // ms a tab may be out of sight before it looks no longer
const sign = 10_000;   // ms between two heartbeats

const looks = new Map(); // what listens to a stream, by its name
let names = 0;
let hub = null;          // takes (wants, focused)
let shown = !document.hidden;
let timer = 0;

function begin() {
  if (hub) return;
  const alone = () => { // one hub for this tab, where browsers share none
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
  else see(true);
});
// A page that is left may be kept for the way back to it.
addEventListener("pagehide", () => see(false));
addEventListener("pageshow", () => see(!document.hidden));

// stream listens to GET /api/v1 + path, server-sent events, while the tab is seen. on maps names of events to functions
// of their data. Where something may have been missed on.resync is called, as if the server had sent it. Returns close().
export function stream(path, on, { onState } = {}) {
  begin();
  const look = new Look(path, on, onState);
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
  constructor(path, on, onState) {
    Object.assign(this, { path, on, onState, state: "", begun: false, timer: 0 });
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
    } else if (this.state === "lost") return;
    else this.timer ||= setTimeout(() => this.#show("lost"), patience);
    this.#show(state);
  }

  close() {
    clearTimeout(this.timer);
    this.onState = null;
    sum();
  }

  #show(state) {
    if (state === this.state) return;
    this.state = state;
    sum();
    this.onState?.(state);
  }

  // A stream does not say why it was refused. A session that ended must lead to the login page.
  async #refused() {
    const now = await refresh();
    if (now.loaded && !now.authenticated) toLogin();
  }
}

function sum() {
  const all = [...looks.values()].map((l) => l.state);
  connection.value = ["lost", "connecting", "waiting", "live"].find((state) => all.includes(state)) ?? "none";
}

function deliver(name, fn, text, id) {
  let data = {};
  try {
    if (text) data = JSON.parse(text);
  } catch (err) {
    console.error("an event that is no JSON:", name, err);
    return;
  }
  fn(data, id);
}
