// How fast runs go, worked out from what the list says of them over time: a summary has progress, but no rate.

const window = 10000; // ms that a rate is taken over, as the server does for a run
const close = 400;   // ms between two notes at the least
const least = 1500;   // ms before there is one

// Pace remembers what was seen of each run and of all together.
export class Pace {
  constructor() {
    this.seen = new Map(); // by run: [[at, parts], …], oldest first
    this.total = [];       // items a second of all runs, newest last
  }

  // take notes a list of summaries that was true at a time.
  take(runs, at) {
    for (const run of runs) {
      if (run.state !== "running") {
        this.seen.delete(run.id);
        continue;
      }
      const notes = this.seen.get(run.id) || [];
      const parts = run.progress * run.items * run.step_count;
      const last = notes[notes.length - 1];
      if (last && (at < last[0] || parts < last[1])) notes.length = 0; // it runs again, or the clock was set
      if (last && at - last[0] < close) continue;
      notes.push([at, parts]);
      while (notes.length > 2 && notes[1][0] < at - window) notes.shift();
      this.seen.set(run.id, notes);
    }
    const rates = runs.filter((run) => run.state === "running").map((run) => this.of(run).rate);
    if (rates.length > 0 && rates.every((rate) => rate === undefined)) return;
    this.total.push(rates.reduce((sum, rate) => sum + (rate || 0), 0));
    if (this.total.length > 90) this.total.shift();
  }

  // of is {rate, eta, still}: items answered a second at all steps, seconds to the end at that rate (not of a canary), and for
  // how many seconds nothing moved. What is not known is undefined.
  of(run) {
    if (run.state !== "running") return {};
    const notes = this.seen.get(run.id);
    if (!notes || notes.length < 2) return {};
    const [from, before] = notes[0];
    const [to, now] = notes[notes.length - 1];
    if (to - from < least) return {};
    const rate = (now - before) / ((to - from) / 1000);
    const left = (1 - run.progress) * run.items * run.step_count;
    return { rate, eta: rate > 0 && !run.sampling ? left / rate : undefined, still: rate > 0 ? 0 : (to - from) / 1000 };
  }
}
