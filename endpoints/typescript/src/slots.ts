// Places for handlers: so many at once. Who has somebody waiting takes the next free place before chunks of runs.

interface Waiter {
  readonly begun: boolean;
  readonly go: (mine: boolean) => void;
}

/** @internal */
export class Slots {
  #used = 0;
  #size: number;
  #stopped = false;
  #urgent: Waiter[] = [];
  #others: Waiter[] = [];

  constructor(size: number) {
    this.#size = size;
  }

  get size(): number {
    return this.#size;
  }

  resize(size: number): void {
    this.#size = size;
    this.#wake();
  }

  /** Takes a place that is free at once; false when there is none. */
  tryTake(): boolean {
    if (this.#used >= this.#size || this.#urgent.length > 0 || this.#others.length > 0) return false;
    this.#used++;
    return true;
  }

  /** Waits for a place. False means that the service stops: work that has not begun gets none then. */
  take(urgent: boolean, begun: boolean): Promise<boolean> {
    if (this.#stopped && !begun) return Promise.resolve(false);
    if (this.tryTake()) return Promise.resolve(true);
    return new Promise((go) => {
      (urgent ? this.#urgent : this.#others).push({ begun, go });
    });
  }

  give(): void {
    this.#used--;
    this.#wake();
  }

  /** Turns away all that has not begun. */
  stop(): void {
    this.#stopped = true;
    for (const waiter of [...this.#urgent, ...this.#others]) if (!waiter.begun) waiter.go(false);
    this.#urgent = this.#urgent.filter(({ begun }) => begun);
    this.#others = this.#others.filter(({ begun }) => begun);
  }

  #wake(): void {
    while (this.#used < this.#size) {
      const next = this.#urgent.shift() ?? this.#others.shift();
      if (!next) return;
      this.#used++;
      next.go(true);
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
