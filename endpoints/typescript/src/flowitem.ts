// What handlers of flows see: items, stages, and the endpoints that they ask.

import type { FlowWork } from './flowwork';
import { BaseItem } from './job';
import { type Binary, Failure, type Meta, type RawItem, type Slot, checkName, said, slotValue, writeJSON } from './wire';

/** An item in a stage of a flow: answer it, ask for it, send it on, or leave it out; then it will be retried. */
export class FlowItem<In = unknown, Out = unknown, State = unknown> extends BaseItem {
  /** The payload, in the first stage only. */
  readonly in!: In;
  /** Kept from stage to stage, as JSON. */
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

  /** Answers with a result, and ends the item's way. What it has asked for in this stage is not asked. */
  reply(result: Out | Binary): void {
    void this.answer(result);
  }

  /** Answers with an error that trying again would not help. */
  fail(code: string, message: string): void {
    void this.answer(new Failure(code, message));
  }

  /** Answers with an error that may pass. */
  retry(code: string, message: string): void {
    void this.answer(new Failure(code, message, true));
  }

  /** Goes on to the next stage without asking for anything. */
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
      return; // the first question stands
    }
    try {
      this.asks.set(target.name, { ...target, query: writeJSON(query) });
    } catch (err) {
      this.fail('bad_query', `the question to ${target.name} cannot be written: ${said(err)}`);
    }
  }

  /** @internal Goes on to the next stage. */
  get moves(): boolean {
    return !this.answered && (this.goesOn || this.asks.size > 0);
  }

  #open(): boolean {
    if (this.answered || this.#work.job.closed) return false;
    if (!this.#work.last) return true;
    this.fail('no_next_stage', `stage ${this.#work.stage} is the last one, and the item asks or goes on in it`);
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

/** The items of a chunk that have come to a stage. */
export class Stage<In = unknown, Out = unknown, State = unknown, Shared = unknown> {
  readonly meta: Meta;
  readonly params: Readonly<Record<string, string>>;
  /** Which stage this is, from 0. */
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

  /** Sends what has been answered so far. */
  flush(): void {
    if (!this.#work.job.closed) this.#work.job.reply.flush();
  }
}

/** An endpoint that flows ask, with a Query for an item, to be answered with an Answer in the next stage. */
export class Target<Query = unknown, Answer = unknown> {
  /** @internal */
  constructor(readonly endpoint: string, readonly name: string, readonly keep: boolean) {
    checkName(endpoint);
    checkName(name);
  }

  /** The same endpoint under another name, so that one stage can ask it two things. */
  as(name: string): Target<Query, Answer> {
    return new Target(this.endpoint, name, this.keep);
  }

  /** A target whose errors do not fail the item: the next stage sees the item, and `error` tells. */
  keepErrors(): Target<Query, Answer> {
    return new Target(this.endpoint, this.name, true);
  }

  /** Asks for an item. The request goes out when the stage has ended. */
  ask(item: FlowItem, query: Query): void {
    item.ask(this, query);
  }

  /** Whether the stage before has asked for the item. */
  asked(item: FlowItem): boolean {
    return item.answers.has(this.name);
  }

  /** The answer; undefined when nothing was asked, or error tells why there is none. It is there in the next stage only. */
  answer(item: FlowItem): Answer | undefined {
    const slot = item.answers.get(this.name);
    return slot && !slot.e ? slotValue(slot) as Answer : undefined;
  }

  /** The error that answers the item; only with keepErrors. */
  error(item: FlowItem): Failure | undefined {
    const slot = item.answers.get(this.name);
    return slot?.e && slotValue(slot) as Failure;
  }
}

/** The target of an endpoint. */
export function target<Query = unknown, Answer = unknown>(endpoint: string): Target<Query, Answer> {
  return new Target(endpoint, endpoint, false);
}
