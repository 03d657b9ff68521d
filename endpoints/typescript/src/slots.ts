// Places for handlers: so many at once for chunks, and some more for those who wait. As in the Go SDK: who has someone
// waiting comes first, until that has had CALL_SHARE times as much time as chunks, which waited.

/** @internal For whom a place is taken. */
export type Lane = 0 | 1;
/** @internal A chunk of a run, or of a flow in one. */
export const CHUNKS: Lane = 0;
/** @internal Someone waits for the answer. */
export const CALLS: Lane = 1;

const CALL_SHARE = 3;
const LONGEST_DEBT = 1_000; // ms; chunks are owed no more than that, however long one takes

interface Waiter {
  readonly begun: boolean;
  readonly go: (mine: boolean) => void;
}

/** @internal */
export class Slots {
  #size: number;
  #stopped = false;
  readonly #used: [number, number] = [0, 0];
  readonly #waiting: [Waiter[], Waiter[]] = [[], []];
  readonly #since: [number, number] = [0, 0]; // when the first of those in waiting began to wait
  #owed = 0; // ms; to chunks, since calls have waited without a break
  #usual = 0; // ms that a chunk had a place while calls waited, on average

  /** reserve is how many places calls have beside those of chunks; undefined: one where there are four or more. */
  constructor(size: number, readonly reserve?: number) {
    this.#size = size;
  }

  get size(): number {
    return this.#size;
  }

  get kept(): number {
    return this.reserve ?? (this.#size >= 4 ? 1 : 0);
  }

  resize(size: number): void {
    this.#size = size;
    this.#admit();
  }

  /** Takes a place that is free at once; false when there is none. */
  tryTake(lane: Lane): boolean {
    if (!this.#free(lane)) return false; // who waits does so because there is none
    this.#used[lane]++;
    return true;
  }

  /** Waits for a place. False means that the service stops: work that has not begun gets none then. */
  take(lane: Lane, begun: boolean): Promise<boolean> {
    if (this.#stopped && !begun) return Promise.resolve(false);
    if (this.tryTake(lane)) return Promise.resolve(true);
    return new Promise((go) => {
      const waiting = this.#waiting[lane];
      if (waiting.push({ begun, go }) === 1) this.#since[lane] = performance.now();
      this.#admit();
    });
  }

  /** Gives a place back that was taken at since, by performance.now(). */
  give(lane: Lane, since: number): void {
    if (this.#waiting[CALLS].length > 0) this.#account(lane, since, performance.now());
    else this.#owed = 0;
    this.#used[lane]--;
    this.#admit();
  }

  /** Turns away all that has not begun. */
  stop(): void {
    this.#stopped = true;
    for (const lane of [CHUNKS, CALLS]) {
      const waiting = this.#waiting[lane];
      for (const waiter of waiting) if (!waiter.begun) waiter.go(false);
      this.#waiting[lane] = waiting.filter(({ begun }) => begun);
    }
  }

  // Only the time counts in which someone of the other lane waited for the place.
  #account(lane: Lane, since: number, at: number): void {
    if (lane === CHUNKS) this.#usual += (at - since - this.#usual) / 4;
    if (this.#waiting[1 - lane as Lane].length === 0) return;
    const had = at - Math.max(since, this.#since[1 - lane as Lane]);
    this.#owed += lane === CHUNKS ? -had : had / CALL_SHARE;
  }

  #free(lane: Lane): boolean {
    const [chunks, calls] = this.#used;
    return chunks + calls < this.#size + this.kept && (lane === CALLS || chunks < this.#size);
  }

  #next(): Lane | undefined {
    const chunk = this.#waiting[CHUNKS].length > 0 && this.#free(CHUNKS);
    const call = this.#waiting[CALLS].length > 0 && this.#free(CALLS);
    if (chunk && (!call || this.#owed >= Math.min(Math.max(this.#usual, 1), LONGEST_DEBT))) return CHUNKS;
    return call ? CALLS : undefined;
  }

  #admit(): void {
    for (let lane = this.#next(); lane !== undefined; lane = this.#next()) {
      const waiter = this.#waiting[lane].shift()!;
      this.#used[lane]++;
      waiter.go(true);
    }
  }
}

/** @internal Wakes all who wait for it. */
export class Signal {
  #wake: () => void = () => {};
  #next: Promise<void> = new Promise((wake) => { this.#wake = wake; });

  tell(): void {
    this.#wake();
    this.#next = new Promise((wake) => { this.#wake = wake; });
  }

  wait(): Promise<void> {
    return this.#next;
  }
}
