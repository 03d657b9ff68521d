// Handlers of lists and of single items.

import { setImmediate as breathe } from 'node:timers/promises';

import { BaseItem, Endpoint, type EndpointOptions, type Host, type ItemInfo, type Job, type Outcome, readPayload } from './job';
import { now } from './reply';
import type { Service } from './service';
import { CHUNKS } from './slots';
import { Binary, type Body, Failure, type Meta, type RawItem, said } from './wire';

const NOT_BEGUN: Outcome = { begun: false };
const BREATH = 10; // ms; handlers that never wait let others in so often

/** One item of a chunk, to be answered once: the first answer counts. An item without one is retried. */
export class Item<In = unknown, Out = unknown> extends BaseItem {
  /** The payload; undefined when the step does not see the item. */
  readonly in!: In;

  /** @internal */
  static of<In, Out>(job: Job, raw: RawItem): Item<In, Out> {
    return new Item<In, Out>(job, raw.i, raw.k, raw.p);
  }

  /**
   * Answers with a result: JSON, or a Binary. What is larger than a message goes in pieces, up to 64 MiB; what is returned
   * can be awaited: then no more of large results is held than is in progress.
   */
  reply(result: Out | Binary): Promise<void> | undefined {
    return this.answer(result);
  }

  /** Answers with an error that trying again would not help. */
  fail(code: string, message: string): void {
    void this.answer(new Failure(code, message));
  }

  /** Answers with an error that may pass. `too_many_requests` and its like cost no attempt. */
  retry(code: string, message: string): void {
    void this.answer(new Failure(code, message, true));
  }
}

/** A list of items that came in one request. */
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

  /** The keys of the items, in their order: the parameter of `WHERE id = ANY($1)`. */
  keys(): string[] {
    return this.items.map(({ key }) => key);
  }

  /** Sends what has been answered so far, without waiting for it to arrive. */
  flush(): void {
    if (!this.#job.closed) this.#job.reply.flush();
  }
}

/**
 * Has handler called once for each chunk. What it throws speaks for all items without an answer: a Failure as it says,
 * anything else as `handler_error`, to be retried.
 */
export function handleList<In = unknown, Out = unknown>(
  service: Service, endpoint: string, handler: (chunk: Chunk<In, Out>) => unknown, options: EndpointOptions<In> = {},
): void {
  service.register(new ListEndpoint<In, Out>(service.host, endpoint, handler, options));
}

/**
 * Has handler called once for each item. What it returns is the result; a Failure that it throws is the item's error, and
 * anything else is `handler_error`, permanently. `signal` is aborted when there is no more time.
 */
export function handleEach<In = unknown, Out = unknown>(
  service: Service, endpoint: string,
  handler: (input: In, item: ItemInfo, signal: AbortSignal) => Out | Binary | Promise<Out | Binary>,
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
  #average = 1; // items of a request

  constructor(
    host: Host, name: string,
    private readonly handler: (input: In, item: ItemInfo, signal: AbortSignal) => Out | Binary | Promise<Out | Binary>,
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
    const first = { free: true }; // the place that was taken above is for the first item
    const failure = items.length === 0 ? undefined
      : await job.run(0, () => items.map(({ key }) => key), (signal) => this.#each(job, items, signal, first));
    if (first.free) this.slots.give(job.lane, since);
    return { begun: true, failure };
  }

  // Each item has a place of its own, so that a chunk gives way between two of them.
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
        if (result instanceof Promise) {
          const begun = since;
          pending.push(result.then((out) => item.answer(out), (err: unknown) => { this.#failed(item, err); })
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
