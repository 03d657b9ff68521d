// Slots for handlers: one per chunk, plus reserved ones for calls. As in the Go SDK, calls go first until they have
// had CALL_SHARE times the time of waiting chunks.

/** @internal The class of work that a slot is for. */
export type Lane = 0 | 1;
/** @internal A chunk of a run, or of a flow in one. */
export const CHUNKS: Lane = 0;
/** @internal A caller waits. */
export const CALLS: Lane = 1;

const CALL_SHARE = 3;
const LONGEST_DEBT = 1_000; // ms; cap on the time owed to chunks

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
  readonly #since: [number, number] = [0, 0]; // when waiting last became non-empty
  #owed = 0; // ms owed to chunks, while calls keep waiting
  #usual = 0; // average ms that a chunk held a slot while calls waited

  /** reserve is the number of extra slots for calls; default 1 if size is 4 or more, else 0. */
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

  /** Takes a free slot; false if none is free. */
  tryTake(lane: Lane): boolean {
    if (!this.#free(lane)) return false; // waiters exist only without free slots
    this.#used[lane]++;
    return true;
  }

  /** Waits for a slot. False means that the service is stopping and the work has not begun. */
  take(lane: Lane, begun: boolean): Promise<boolean> {
    if (this.#stopped && !begun) return Promise.resolve(false);
    if (this.tryTake(lane)) return Promise.resolve(true);
    return new Promise((go) => {
      const waiting = this.#waiting[lane];
      if (waiting.push({ begun, go }) === 1) this.#since[lane] = performance.now();
      this.#admit();
    });
  }

  /** Releases a slot taken at since, by performance.now(). */
  give(lane: Lane, since: number): void {
    if (this.#waiting[CALLS].length > 0) this.#account(lane, since, performance.now());
    else this.#owed = 0;
    this.#used[lane]--;
    this.#admit();
  }

  /** Rejects all waiters that have not begun. */
  stop(): void {
    this.#stopped = true;
    for (const lane of [CHUNKS, CALLS]) {
      const waiting = this.#waiting[lane];
      for (const waiter of waiting) if (!waiter.begun) waiter.go(false);
      this.#waiting[lane] = waiting.filter(({ begun }) => begun);
    }
  }

  // Only time in which the other lane waited counts.
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

/** @internal Wakes all waiters. */
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
