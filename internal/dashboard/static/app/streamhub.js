// One connection per stream, shared by all tabs: browsers allow six per server over HTTP/1.1, and other requests need
// some.

const AT_ONCE = 4;          // open streams, those of the most recently focused tabs
const SILENT = 30_000;      // ms of silence until a tab is considered gone
const FIRST_PAUSE = 500;    // ms until a refused stream is retried
const LONGEST_PAUSE = 15_000;

/** Hub holds the streams. connect(path) returns an EventSource, and now() a time in ms; both for tests. */
export class Hub {
  constructor(connect, now = () => Date.now()) {
    Object.assign(this, { connect, now });
    this.tabs = new Set();
    this.streams = new Map(); // open ones, by path
  }

  /**
   * attach adds a tab and returns the function that the tab calls at each change and periodically: want(wants,
   * focused), with the paths of its streams by its own names, and whether it was just focused. post(message) sends to
   * it, by that name: {to, state} ("live", "connecting", "refused", "waiting"), {to, joined: true} if its state may
   * be outdated, and {to, name, data, id} for an event.
   */
  attach(post) {
    const tab = { post, wants: new Map(), focused: 0, heard: this.now() };
    return (wants, focused) => {
      this.tabs.add(tab);
      tab.heard = this.now();
      if (focused) tab.focused = tab.heard;
      const before = tab.wants;
      tab.wants = new Map(Object.entries(wants));
      this.#arrange();
      for (const [name, path] of tab.wants) if (before.get(name) !== path) this.#welcome(tab, name, path);
      if (tab.wants.size === 0) this.tabs.delete(tab);
    };
  }

  /** sweep drops tabs that disappeared silently. */
  sweep() {
    for (const tab of this.tabs) {
      if (this.now() - tab.heard <= SILENT) continue;
      this.tabs.delete(tab);
      tab.wants = new Map();
    }
    this.#arrange();
  }

  /** tell posts to all tabs that use a stream. */
  tell(path, message) {
    for (const tab of this.tabs) {
      for (const [to, wanted] of tab.wants) if (wanted === path) tab.post({ to, ...message });
    }
  }

  // Opens the streams that may be open and closes the rest.
  #arrange() {
    const wanted = new Map(); // time of the last focus, by path
    for (const tab of this.tabs) {
      for (const path of tab.wants.values()) wanted.set(path, Math.max(wanted.get(path) ?? 0, tab.focused));
    }
    const all = [...wanted.keys()].sort((a, b) => wanted.get(b) - wanted.get(a));
    const may = new Set(all.slice(0, AT_ONCE));
    for (const [path, stream] of this.streams) {
      if (may.has(path)) continue;
      this.streams.delete(path);
      stream.close();
      this.tell(path, { state: "waiting" });
    }
    for (const path of may) if (!this.streams.has(path)) this.streams.set(path, new Stream(this, path));
  }

  // A tab that joins a stream gets the newest event of each name, except changes.
  #welcome(tab, to, path) {
    const stream = this.streams.get(path);
    tab.post({ to, state: stream ? stream.state : "waiting" });
    if (stream?.state !== "live") return;
    tab.post({ to, joined: true });
    for (const event of stream.newest.values()) tab.post({ to, ...event });
  }
}

// Events that a joining tab must not get, because they are relative to earlier ones.
const PASSING = ["delta", "resync"];

// The names of all events of the server's streams: an EventSource must register each.
const NAMES = ["hello", "run", "delta", "resync", "end", "database", "health", "runs"];

// Stream is one connection. The browser reconnects and resumes it, unless it was refused.
class Stream {
  constructor(hub, path) {
    Object.assign(this, { hub, path, state: "connecting", newest: new Map(), pause: FIRST_PAUSE, timer: 0 });
    this.#open();
  }

  close() {
    clearTimeout(this.timer);
    this.source.close();
  }

  #open() {
    let again = true;
    const source = this.source = this.hub.connect(this.path);
    source.onopen = () => {
      this.pause = FIRST_PAUSE;
      this.#set("live");
      if (again) this.hub.tell(this.path, { joined: true });
      again = false;
    };
    source.onerror = () => {
      if (source.readyState !== 2) {
        this.#set("connecting");
        return;
      }
      this.newest.clear();
      this.#set("refused");
      this.timer = setTimeout(() => this.#open(), this.pause * (0.75 + Math.random() / 2));
      this.pause = Math.min(this.pause * 2, LONGEST_PAUSE);
    };
    for (const name of NAMES) {
      source.addEventListener(name, ({ data, lastEventId: id }) => {
        const event = { name, data, id };
        if (!PASSING.includes(name)) {
          this.newest.delete(name);
          this.newest.set(name, event);
        }
        this.hub.tell(this.path, event);
      });
    }
  }

  #set(state) {
    this.state = state;
    this.hub.tell(this.path, { state });
  }
}
