// What handlers of flows use: items, stages and targets.

import type { FlowWork } from './flowwork';
import { BaseItem } from './job';
import { type Binary, Failure, type Meta, type RawItem, type Slot, checkName, said, slotValue, writeJSON } from './wire';

/** An item in a stage. Answer it, ask a target, or call next; otherwise it is left out and retried. */
export class FlowItem<In = unknown, Out = unknown, State = unknown> extends BaseItem {
  /** The payload, in the first stage only. */
  readonly in!: In;
  /** Kept for the next stages, as JSON. */
  state: State | undefined;
  /** @internal */ readonly asks = new Map<string, Ask>();
  /** @internal */ answers = new Map<string, Slot>();
  /** @internal */ waits: number[] = [];
  /** @internal */ goesOn = false;
  readonly #work: FlowWork;

  /** @internal */
  constructor(work: FlowWork, ordinal: number, key: string, parts?: RawItem['p']) {
    super(work.job, ordinal, key, parts);
    this.#work = work;
  }

  /** Answers with a result and ends the item's flow. Its questions in this stage are dropped. */
  reply(result: Out | Binary): void {
    void this.answer(result);
  }

  /** Answers with a permanent error. */
  fail(code: string, message: string): void {
    void this.answer(new Failure(code, message));
  }

  /** Answers with a retryable error. */
  retry(code: string, message: string): void {
    void this.answer(new Failure(code, message, true));
  }

  /** Moves to the next stage without a question. */
  next(): void {
    if (this.#open()) this.goesOn = true;
  }

  /** @internal */
  ask(target: { endpoint: string; name: string; keep: boolean }, query: unknown): void {
    if (!this.#open() || !this.#work.deepEnough(this)) return;
    const before = this.asks.get(target.name);
    if (before) {
      if (before.endpoint !== target.endpoint) {
        this.fail('bad_query', `the item asks both endpoint ${before.endpoint} and endpoint ${target.endpoint} under the name `
          + `${target.name}; give one another name, by as`);
      }
      return; // the first question counts
    }
    try {
      this.asks.set(target.name, { ...target, query: writeJSON(query) });
    } catch (err) {
      this.fail('bad_query', `the question to ${target.name} cannot be written: ${said(err)}`);
    }
  }

  /** @internal Whether the item moves to the next stage. */
  get moves(): boolean {
    return !this.answered && (this.goesOn || this.asks.size > 0);
  }

  #open(): boolean {
    if (this.answered || this.#work.job.closed) return false;
    if (!this.#work.last) return true;
    this.fail('no_next_stage', `stage ${this.#work.stage} is the last one, and the item asks or continues in it`);
    return false;
  }
}

/** @internal */
export interface Ask {
  readonly endpoint: string;
  readonly name: string;
  readonly keep: boolean;
  readonly query: string;
}

/** The items of a chunk that reached a stage. */
export class Stage<In = unknown, Out = unknown, State = unknown, Shared = unknown> {
  readonly meta: Meta;
  readonly params: Readonly<Record<string, string>>;
  /** The stage's number, from 0. */
  readonly number: number;
  readonly #work: FlowWork;

  /** @internal */
  constructor(work: FlowWork, readonly items: FlowItem<In, Out, State>[], readonly signal: AbortSignal) {
    this.#work = work;
    this.meta = work.job.head;
    this.params = work.job.params;
    this.number = work.stage;
  }

  /** Kept with the chunk from stage to stage, as JSON. */
  get shared(): Shared | undefined {
    return this.#work.shared as Shared | undefined;
  }

  set shared(value: Shared | undefined) {
    this.#work.shared = value;
  }

  keys(): string[] {
    return this.items.map(({ key }) => key);
  }

  /** Sends the answers so far. */
  flush(): void {
    if (!this.#work.job.closed) this.#work.job.reply.flush();
  }
}

/** An endpoint that flows query: it takes a Query for an item and returns an Answer in the next stage. */
export class Target<Query = unknown, Answer = unknown> {
  /** @internal */
  constructor(readonly endpoint: string, readonly name: string, readonly keep: boolean) {
    checkName(endpoint);
    checkName(name);
  }

  /** The same endpoint under another name, to ask it two questions in one stage. */
  as(name: string): Target<Query, Answer> {
    return new Target(this.endpoint, name, this.keep);
  }

  /** A target whose errors do not fail the item. The next stage gets them from `error`. */
  keepErrors(): Target<Query, Answer> {
    return new Target(this.endpoint, this.name, true);
  }

  /** Asks a question for an item. It is sent when the stage ends. */
  ask(item: FlowItem, query: Query): void {
    item.ask(this, query);
  }

  /** Whether the previous stage asked this target for the item. */
  asked(item: FlowItem): boolean {
    return item.answers.has(this.name);
  }

  /** The answer to the previous stage's question; undefined if there was no question or there is an error. */
  answer(item: FlowItem): Answer | undefined {
    const slot = item.answers.get(this.name);
    return slot && !slot.e ? slotValue(slot) as Answer : undefined;
  }

  /** The error that answered the question; only with keepErrors. */
  error(item: FlowItem): Failure | undefined {
    const slot = item.answers.get(this.name);
    return slot?.e && slotValue(slot) as Failure;
  }
}

/** Returns the target of an endpoint. */
export function target<Query = unknown, Answer = unknown>(endpoint: string): Target<Query, Answer> {
  return new Target(endpoint, endpoint, false);
}
