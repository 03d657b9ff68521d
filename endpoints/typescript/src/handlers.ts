// Handlers of lists and of single items.

import { setImmediate as breathe } from 'node:timers/promises';

import { BaseItem, Endpoint, type EndpointOptions, type Host, type ItemInfo, type Job, type Outcome, readPayload } from './job';
import { now } from './reply';
import type { Service } from './service';
import { CHUNKS } from './slots';
import { Binary, type Body, Failure, type Meta, type RawItem, isLater, said } from './wire';

const NOT_BEGUN: Outcome = { begun: false };
const BREATH = 10; // ms after which handlers that never wait yield

/** One item of a chunk. Only its first answer counts; without one it is retried. */
export class Item<In = unknown, Out = unknown> extends BaseItem {
  /** The payload; undefined if the step does not receive it. */
  readonly in!: In;

  /** @internal */
  static of<In, Out>(job: Job, raw: RawItem): Item<In, Out> {
    return new Item<In, Out>(job, raw.i, raw.k, raw.p);
  }

  /**
   * Answers with a result: JSON, or a Binary. A result larger than a message is sent in pieces, up to 64 MiB. Await
   * the returned promise, if any, to limit the large results held in memory.
   */
  reply(result: Out | Binary): Promise<void> | undefined {
    return this.answer(result);
  }

  /** Answers with a permanent error. */
  fail(code: string, message: string): void {
    void this.answer(new Failure(code, message));
  }

  /** Answers with a retryable error. Codes such as `too_many_requests` cost no attempt. */
  retry(code: string, message: string): void {
    void this.answer(new Failure(code, message, true));
  }
}

/** The items of one request. */
export class Chunk<In = unknown, Out = unknown> {
  readonly meta: Meta;
  /** The run's parameters. */
  readonly params: Readonly<Record<string, string>>;
  readonly #job: Job;

  /** @internal */
  constructor(job: Job, readonly items: Item<In, Out>[], readonly signal: AbortSignal) {
    this.#job = job;
    this.meta = job.head;
    this.params = job.params;
  }

  /** The keys of the items in the same order, for `WHERE id = ANY($1)`. */
  keys(): string[] {
    return this.items.map(({ key }) => key);
  }

  /** Sends the answers so far without waiting for delivery. */
  flush(): void {
    if (!this.#job.closed) this.#job.reply.flush();
  }
}

/**
 * Calls handler once per chunk. An error that it throws applies to all unanswered items: a Failure as such, any other
 * as a retryable `handler_error`.
 */
export function handleList<In = unknown, Out = unknown>(
  service: Service, endpoint: string, handler: (chunk: Chunk<In, Out>) => unknown, options: EndpointOptions<In> = {},
): void {
  service.register(new ListEndpoint<In, Out>(service.host, endpoint, handler, options));
}

/**
 * Calls handler once per item, several in parallel. Its result, or a Failure that it throws, answers the item; any
 * other error is a permanent `handler_error`. `signal` aborts when its time runs out.
 */
export function handleEach<In = unknown, Out = unknown>(
  service: Service, endpoint: string,
  handler: (input: In, item: ItemInfo, signal: AbortSignal) => Out | Binary | PromiseLike<Out | Binary>,
  options: EndpointOptions<In> = {},
): void {
  service.register(new EachEndpoint<In, Out>(service.host, endpoint, handler, options));
}

function itemsOf<In, Out>(endpoint: Endpoint, job: Job, raw: RawItem[]): Item<In, Out>[] {
  const items: Item<In, Out>[] = [];
  for (const one of raw) {
    const item = Item.of<In, Out>(job, one);
    const take = (input: In): void => { (item as { in: In }).in = input; };
    if (readPayload(endpoint, item, one.d, take)) items.push(item);
  }
  return items;
}

class ListEndpoint<In, Out> extends Endpoint {
  constructor(
    host: Host, name: string, private readonly handler: (chunk: Chunk<In, Out>) => unknown, options: EndpointOptions<In>,
  ) {
    super(host, name, options as EndpointOptions<never>, 2);
  }

  room(): number {
    return 2 * this.slots.size;
  }

  protected async work(job: Job, body: Body): Promise<Outcome> {
    if (!(await this.slots.take(job.lane, false))) return NOT_BEGUN;
    const since = performance.now();
    try {
      job.reply.began = now();
      const items = itemsOf<In, Out>(this, job, body.items);
      if (items.length === 0) return { begun: true };
      const failure = await job.run(0, () => items.map(({ key }) => key),
        (signal) => this.handler(new Chunk(job, items, signal)));
      return { begun: true, failure };
    } finally {
      this.slots.give(job.lane, since);
    }
  }
}

class EachEndpoint<In, Out> extends Endpoint {
  #average = 1; // items per request

  constructor(
    host: Host, name: string,
    private readonly handler: (input: In, item: ItemInfo, signal: AbortSignal) => Out | Binary | PromiseLike<Out | Binary>,
    options: EndpointOptions<In>,
  ) {
    super(host, name, options as EndpointOptions<never>, 8);
  }

  room(): number {
    return Math.max(2, Math.ceil((2 * this.slots.size) / this.#average));
  }

  override status(): Record<string, number | boolean> {
    return { ...super.status(), each: true };
  }

  protected async work(job: Job, body: Body): Promise<Outcome> {
    if (job.lane === CHUNKS) this.#average += (body.items.length - this.#average) / 8;
    if (!(await this.slots.take(job.lane, false))) return NOT_BEGUN;
    const since = performance.now();
    job.reply.began = now();
    const items = itemsOf<In, Out>(this, job, body.items);
    const first = { free: true }; // the slot taken above is for the first item
    const failure = items.length === 0 ? undefined
      : await job.run(0, () => items.map(({ key }) => key), (signal) => this.#each(job, items, signal, first));
    if (first.free) this.slots.give(job.lane, since);
    return { begun: true, failure };
  }

  // Each item has its own slot, so that a chunk yields between items.
  async #each(job: Job, items: Item<In, Out>[], signal: AbortSignal, first: { free: boolean }): Promise<void> {
    const { slots } = this;
    const { lane } = job;
    const pending: Promise<void>[] = [];
    let since = performance.now();
    let breath = since;
    for (const item of items) {
      if (first.free) first.free = false;
      else if (!slots.tryTake(lane)) {
        await slots.take(lane, true);
        since = performance.now();
      }
      if (signal.aborted) {
        slots.give(lane, since);
        break;
      }
      try {
        const result = this.handler(item.in, item, signal);
        if (isLater(result)) {
          const begun = since;
          pending.push(Promise.resolve(result).then((out) => item.answer(out), (err: unknown) => { this.#failed(item, err); })
            .finally(() => slots.give(lane, begun)));
          continue;
        }
        const large = item.answer(result);
        if (large) await large;
      } catch (err) {
        this.#failed(item, err);
      }
      slots.give(lane, since);
      since = performance.now();
      if (since - breath > BREATH) {
        await breathe();
        since = breath = performance.now();
      }
    }
    await Promise.all(pending);
  }

  #failed(item: Item<In, Out>, err: unknown): void {
    void item.answer(err instanceof Failure ? err : new Failure('handler_error', said(err)));
  }
}
