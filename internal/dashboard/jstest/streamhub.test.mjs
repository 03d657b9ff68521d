import assert from "node:assert/strict";
import test from "node:test";
import { Hub } from "../static/app/streamhub.js";

// Source is an EventSource that does what it is told.
class Source {
  constructor(path) {
    Object.assign(this, { path, readyState: 0, listeners: {} });
  }
  addEventListener(name, fn) { this.listeners[name] = fn; }
  close() { this.readyState = 2; }
  open() { this.readyState = 1; this.onopen(); }
  fail(readyState) { this.readyState = readyState; this.onerror(); }
  send(name, data) { this.listeners[name]({ data, lastEventId: "" }); }
}

function setup() {
  const all = [];
  const clock = { now: 0 };
  const hub = new Hub((path) => all[all.push(new Source(path)) - 1], () => clock.now);
  const tab = () => {
    const got = [];
    return { want: hub.attach((m) => got.push(m)), got, states: () => got.filter((m) => m.state).map((m) => m.state) };
  };
  return { hub, all, clock, tab, open: () => all.filter((s) => s.readyState !== 2).map((s) => s.path) };
}

test("tabs share a stream, and who joins is told what the others know", () => {
  const { all, tab, open } = setup();
  const [a, b] = [tab(), tab()];
  a.want({ 1: "/x" }, true);
  all[0].open();
  all[0].send("run", "1");
  all[0].send("run", "2");
  all[0].send("delta", "d");
  b.want({ 7: "/x" }, true);
  assert.deepEqual(open(), ["/x"]);
  assert.deepEqual(b.got, [{ to: "7", state: "live" }, { to: "7", joined: true },
    { to: "7", name: "run", data: "2", id: "" }]);
  all[0].send("delta", "e");
  assert.deepEqual(b.got.at(-1), { to: "7", name: "delta", data: "e", id: "" });
  a.want({}, false);
  assert.deepEqual(open(), ["/x"]);
  b.want({}, false);
  assert.deepEqual(open(), []);
});

test("four are open concurrently: those that had the focus last", () => {
  const { clock, tab, open } = setup();
  const tabs = Array.from({ length: 6 }, (_, i) => {
    const one = tab();
    clock.now++;
    one.want({ 1: "/" + i }, true);
    return one;
  });
  assert.deepEqual(open().sort(), ["/2", "/3", "/4", "/5"]);
  assert.deepEqual(tabs[0].states(), ["connecting", "waiting"]);
  clock.now++;
  tabs[0].want({ 1: "/0" }, true);
  assert.deepEqual(open().sort(), ["/0", "/3", "/4", "/5"]);
  tabs[1].want({ 1: "/1" }, false); // a heartbeat is no focus
  assert.deepEqual(open().sort(), ["/0", "/3", "/4", "/5"]);
});

test("a tab that is gone without a word holds nothing", () => {
  const { hub, clock, tab, open } = setup();
  const [gone, here] = [tab(), tab()];
  gone.want({ 1: "/gone" }, true);
  clock.now = 29_000;
  here.want({ 1: "/here" }, true);
  hub.sweep();
  assert.deepEqual(open(), ["/gone", "/here"]);
  clock.now = 31_000;
  hub.sweep();
  assert.deepEqual(open(), ["/here"]);
  gone.want({ 1: "/gone" }, false); // it only slept
  assert.equal(gone.got.at(-1).state, "connecting");
});

test("what was refused is retried, and known again", async () => {
  const { all, tab } = setup();
  const a = tab();
  a.want({ 1: "/x" }, true);
  all[0].open();
  all[0].send("run", "old");
  all[0].fail(0);
  assert.equal(a.states().at(-1), "connecting"); // the browser comes back by itself
  all[0].open();
  assert.equal(a.got.filter((m) => m.joined).length, 1);
  all[0].fail(2);
  assert.equal(a.states().at(-1), "refused");
  while (all.length < 2) await new Promise((done) => setTimeout(done, 10));
  all[1].open();
  assert.equal(a.got.filter((m) => m.joined).length, 2);
  const b = tab();
  b.want({ 1: "/x" }, true);
  assert.equal(b.got.some((m) => m.data === "old"), false);
  a.want({}, false);
  b.want({}, false);
});
