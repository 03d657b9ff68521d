// One connection for each stream that someone looks at, shared by all tabs: a browser has six for one server over
// HTTP/1.1, and whatever else the pages ask for needs some, too.

const AT_ONCE = 4;          // streams that are open; those of the tabs that had the focus last
const SILENT = 30_000;      // ms without a word, and a tab is taken to be gone
const FIRST_PAUSE = 500;    // ms until a stream that was refused is retried
const LONGEST_PAUSE = 15_000;

/** Hub holds the streams. connect(path) returns an EventSource, and now() a time in ms; both for tests. */
export class Hub {
  constructor(connect, now = () => Date.now()) {
    Object.assign(this, { connect, now });
    this.tabs = new Set();
    this.streams = new Map(); // those that are open, by path
  }

  /**
   * attach counts a tab in, and returns what the tab is to call at each change, and now and then: want(wants, focused),
   * with the paths of the streams that it looks at, by names of its own, and whether it has just got the focus. post(message) tells it of each by that name:
   * {to, state} ("live", "connecting", "refused", "waiting"), {to, joined: true} when what it knows may be out of date,
   * and {to, name, data, id} for an event.
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

  /** sweep forgets tabs that are gone without a word. */
  sweep() {
    for (const tab of this.tabs) {
      if (this.now() - tab.heard <= SILENT) continue;
      this.tabs.delete(tab);
      tab.wants = new Map();
    }
    this.#arrange();
  }

  /** tell tells all who look at a stream. */
  tell(path, message) {
    for (const tab of this.tabs) {
      for (const [to, wanted] of tab.wants) if (wanted === path) tab.post({ to, ...message });
    }
  }

  // The streams that may be open are opened, all others closed.
  #arrange() {
    const wanted = new Map(); // when it had the focus, by path
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

  // A tab that joins a stream is told what the others know: the newest event of each name, but for changes.
  #welcome(tab, to, path) {
    const stream = this.streams.get(path);
    tab.post({ to, state: stream ? stream.state : "waiting" });
    if (stream?.state !== "live") return;
    tab.post({ to, joined: true });
    for (const event of stream.newest.values()) tab.post({ to, ...event });
  }
}

// What a tab that joins must not be told: it is about what came before.
const PASSING = ["delta", "resync"];

// The names of all events that the server's streams have: an EventSource listens for none that it was not told of.
const NAMES = ["hello", "run", "delta", "resync", "end", "database", "health", "runs"];

// Stream is one connection. The browser comes back by itself where it was, unless it was refused.
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
