// A request of any kind of endpoint, from its delivery to its acknowledgement.

import { AsyncLocalStorage } from 'node:async_hooks';
import { createHash } from 'node:crypto';

import type { MsgHdrs } from '@nats-io/transport-node';

import type { Bus } from './bus';
import { fetchPart } from './part';
import { type Delivery, SETTLE, nak } from './puller';
import { Reply, now } from './reply';
import { CALLS, CHUNKS, type Lane, Slots } from './slots';
import {
  Binary, type Body, Failure, Foreign, type Head, MAX_STACK, type Meta, type RawItem, type Trace, checkName, checkOrigin, depth,
  readBody, readHead, said, toHeaders,
} from './wire';

/** Settings of an endpoint. Times are in milliseconds. */
export interface EndpointOptions<In = unknown> {
  /** JSON Schemas of an item and a result, up to 16 KiB each. A run is refused if its items lack what `in` requires. */
  schema?: { in?: object; out?: object };
  /** Chunks (handleEach: items) per instance in parallel; operators may override it. Default 2, or 8 items. */
  concurrency?: number;
  /**
   * Extra slots for calls and for flows started by calls. Without one, a call waits until a chunk, or an item of
   * handleEach, ends. Default: 1 if concurrency is 4 or more, else 0.
   */
  reserve?: number;
  /** Limit for handling a chunk or stage, and for the wait between stages of a flow. Default 600,000. */
  timeout?: number;
  /**
   * Validates and converts a payload; it throws if the payload does not fit, which fails the item with `bad_payload`.
   * By default, payloads are not checked.
   */
  read?: (payload: unknown) => In;
  /** Run around the handler, inside the service's wrappers, the first outermost. */
  wrap?: Wrapper[];
}

/** A wrapper's view of a chunk or stage. */
export interface Work {
  readonly endpoint: string;
  /** Of a flow, from 0. */
  readonly stage: number;
  readonly meta: Meta;
  readonly keys: string[];
  /** The trace context of the request. */
  readonly trace: Readonly<Trace>;
  /** Sets the trace context of later messages: the reply, a flow's questions, calls. */
  setTrace(trace: Trace): void;
  /** Number of items answered with an error so far. */
  readonly errors: number;
}

/**
 * Runs around the handler of each chunk or stage: for spans, counters or logs. Call `next` once; its promise rejects
 * with the handler's error.
 */
export type Wrapper = (work: Work, next: () => Promise<void>) => Promise<void>;

/** @internal What an endpoint needs of its service. */
export interface Host {
  readonly bus: Bus;
  readonly identity: string;
  readonly wrap: Wrapper[];
  /** Aborts when the drain timeout expires. */
  readonly late: AbortSignal;
  log(line: string): void;
}

/** @internal */
export const current = new AsyncLocalStorage<Job>();

/** @internal The outcome of processing a request. */
export interface Outcome {
  readonly begun: boolean;
  readonly failure?: Failure | undefined;
  /** Set if the chunk is suspended: sends its requests. A returned Failure means that it could not. */
  readonly leave?: () => Promise<Failure | undefined>;
}

/** @internal The processing of one request, or of one stage. */
export class Job {
  closed = false; // later answers are dropped
  /** CALLS for single requests, and for direct requests that are not a node's. */
  readonly lane: Lane;

  constructor(
    readonly endpoint: Endpoint, readonly head: Head, readonly params: Record<string, string>, readonly reply: Reply,
    stored: boolean,
  ) {
    const waits = head.mode === 'single' || (!stored && !head.replyTo.startsWith('tranche.call.node-'));
    this.lane = waits ? CALLS : CHUNKS;
  }

  idempotencyKey(ordinal: number, key: string): string {
    const { run, step, generation, stack } = this.head;
    const hash = createHash('sha256').update(key).digest('hex').slice(0, 16);
    return `${run}/${step}/${ordinal}/${generation}/${hash}${stack && `/${stack}`}`;
  }

  /** Runs a handler inside its wrappers; returns the failure that applies to unanswered items. */
  async run(stage: number, keys: () => string[], handler: (signal: AbortSignal) => unknown): Promise<Failure | undefined> {
    const { host, options } = this.endpoint;
    let next = (): Promise<void> => this.#guard(handler);
    const wrappers = [...host.wrap, ...(options.wrap ?? [])];
    if (wrappers.length > 0) {
      const work = new JobWork(this, stage, keys);
      for (const wrap of wrappers.reverse()) {
        const inner = next;
        next = async () => wrap(work, inner);
      }
    }
    try {
      await current.run(this, next);
      return undefined;
    } catch (err) {
      return err instanceof Failure ? err : new Failure('handler_error', said(err), true);
    }
  }

  // Waits for the handler, until its timeout or the end of the drain timeout.
  #guard(handler: (signal: AbortSignal) => unknown): Promise<void> {
    const { host, options } = this.endpoint;
    return new Promise((done, fail) => {
      const abort = new AbortController();
      const over = (failure: Failure): void => {
        fail(failure);
        abort.abort(failure);
      };
      const shut = (): void => over(new Failure('shutdown', 'the service stopped before it got to the rest', true));
      const timer = setTimeout(() => over(new Failure('timeout', `the handler took over ${options.timeout} ms`, true)),
        options.timeout);
      host.late.addEventListener('abort', shut);
      if (host.late.aborted) shut();
      Promise.resolve().then(() => handler(abort.signal)).then(() => done(), fail).finally(() => {
        clearTimeout(timer);
        host.late.removeEventListener('abort', shut);
      });
    });
  }
}

class JobWork implements Work {
  readonly endpoint: string;
  readonly meta: Meta;
  readonly #job: Job;
  readonly #keys: () => string[];

  constructor(job: Job, readonly stage: number, keys: () => string[]) {
    this.#job = job;
    this.#keys = keys;
    this.endpoint = job.endpoint.name;
    this.meta = job.head;
  }

  get keys(): string[] {
    return this.#keys();
  }

  get trace(): Readonly<Trace> {
    return this.#job.reply.trace;
  }

  get errors(): number {
    return this.#job.reply.errors;
  }

  setTrace(trace: Trace): void {
    this.#job.reply.trace = { traceparent: trace.traceparent, tracestate: trace.tracestate };
  }
}

/** @internal An endpoint of a service: a list, single items, or a flow. */
export abstract class Endpoint {
  readonly slots: Slots;
  readonly options: EndpointOptions & { timeout: number };
  own: number;
  readonly stats = { chunks: 0, processed: 0, errors: 0, nanoseconds: 0, redelivered: 0, given_up: 0 };
  stopping = false;

  constructor(readonly host: Host, readonly name: string, options: EndpointOptions<never>, concurrency: number) {
    checkName(name);
    this.own = options.concurrency ?? concurrency;
    const { timeout = 600_000, reserve } = options;
    if (!Number.isInteger(this.own) || this.own < 1 || this.own > 1024) {
      throw new TypeError(`endpoint ${name}: concurrency is ${this.own}; it may be 1 to 1024`);
    }
    if (reserve !== undefined && (!Number.isInteger(reserve) || reserve < 0 || reserve > 1024)) {
      throw new TypeError(`endpoint ${name}: reserve is ${reserve}; it may be 0 to 1024`);
    }
    if (!(timeout > 0 && timeout < 2 ** 31)) throw new TypeError(`endpoint ${name}: timeout is ${timeout} ms`);
    this.options = { ...options, timeout } as EndpointOptions & { timeout: number };
    this.slots = new Slots(this.own, reserve);
  }

  /** Limit of requests held: about twice those in progress. */
  abstract room(): number;
  /** Processes a request. */
  protected abstract work(job: Job, body: Body): Promise<Outcome>;

  stop(): void {
    this.stopping = true;
    this.slots.stop();
  }

  /** Applies the concurrency set by operators, or else the service's own. */
  obey(setting: string | undefined): void {
    const asked = setting !== undefined && /^[1-9]\d{0,3}$/.test(setting) ? Number(setting) : 0;
    const concurrency = asked > 0 && asked <= 1024 ? asked : this.own;
    if (concurrency !== this.slots.size) this.slots.resize(concurrency);
  }

  newReply(head: Head): Reply {
    const { bus, identity } = this.host;
    const send = (subject: string, headers: MsgHdrs, body: Uint8Array): Promise<void> => (
      subject.startsWith('tranche.call.') ? bus.send(subject, headers, body) : bus.store(subject, headers, body));
    return new Reply(head, identity, bus.maxPayload, send);
  }

  /** Handles one request to its end. */
  async accept(delivery: Delivery): Promise<void> {
    const started = now();
    if (delivery.deliveries > 1) this.stats.redelivered++;
    let head: Head;
    try {
      head = readHead(delivery.headers, this.name);
      checkOrigin(delivery.headers);
    } catch (err) { // rule 5: there is no requester to answer
      this.host.log(`${this.name}: a request cannot be read: ${said(err)}`);
      await delivery.settle(err instanceof Foreign ? nak(10_000) : `+TERM ${said(err)}`);
      return;
    }
    const reply = this.newReply(head);
    let body: Body;
    try {
      if (depth(head.stack) > MAX_STACK) {
        throw new Failure('stack_too_deep', `over ${MAX_STACK} endpoints wait for one another; is there a circle? ${head.stack}`);
      }
      body = readBody(head.encoding, delivery.data);
    } catch (err) {
      await this.settle(delivery, reply, err as Failure, `+TERM ${said(err).replace(/[^\x20-\x7e]/g, ' ').slice(0, 200)}`);
      return;
    }
    if (delivery.deliveries > head.deliveries) { // rule 6
      this.stats.given_up++;
      const message = `the chunk was delivered ${delivery.deliveries} times and never answered`;
      await this.settle(delivery, reply, new Failure('too_many_deliveries', message, true), '+ACK');
      return;
    }
    const job = new Job(this, head, body.params, reply, delivery.stored);
    const outcome = await this.work(job, body);
    if (!outcome.begun) return this.handBack(delivery, reply); // rule 8
    await this.end(delivery, job, outcome, body.items.length, body.items.length, started);
  }

  /** Answers or suspends, then acknowledges the delivery. */
  async end(delivery: Delivery, job: Job, outcome: Outcome, total: number, items: number, started: number): Promise<boolean> {
    const { reply } = job;
    job.closed = true;
    let { failure } = outcome;
    let suspended = false;
    if (outcome.leave) {
      try {
        reply.flush();
        failure = await outcome.leave();
        if (!failure) await reply.arrived();
        suspended = !failure;
      } catch (err) {
        this.host.log(`${this.name}: the chunk could not be suspended: ${said(err)}`);
        await delivery.settle(nak(2_000));
        return false;
      }
    }
    if (reply.total >= total) failure = undefined; // all items are answered
    const done = suspended ? (await delivery.settle('+ACK'), true) : await this.settle(delivery, reply, failure, '+ACK');
    if (done) {
      this.stats.chunks++;
      this.stats.processed += suspended ? 0 : items;
      this.stats.errors += reply.errors;
      this.stats.nanoseconds += (now() - started) * 1e6;
    }
    return done;
  }

  /** Completes the reply, then acknowledges the request. */
  async settle(delivery: Delivery, reply: Reply, failure: Failure | undefined, how: string): Promise<boolean> {
    try {
      await reply.finish(failure);
    } catch (err) { // rule 4
      this.host.log(`${this.name}: the reply could not be sent: ${said(err)}`);
      await delivery.settle(nak(2_000));
      return false;
    }
    // Acknowledge only now: JetStream has stored the whole reply (rule 3).
    await delivery.settle(how);
    return true;
  }

  async handBack(delivery: Delivery, reply: Reply): Promise<void> {
    if (delivery.stored) return delivery.settle(nak(2 * SETTLE));
    await this.settle(delivery, reply, new Failure('shutdown', 'the service is stopping', true), '');
  }

  /** Refuses a caller's request. */
  async refuse(headers: MsgHdrs | undefined, failure: Failure): Promise<void> {
    const reply = this.newReply(readHead(headers ?? toHeaders([]), this.name));
    await reply.finish(failure);
  }

  status(): Record<string, number | boolean> {
    const { nanoseconds, ...counts } = this.stats;
    const average = counts.processed ? Math.round(nanoseconds / counts.processed) : 0;
    return { ...counts, avg_per_item: average, concurrency: this.slots.size, each: false, stages: 0 };
  }
}

/** Identifies an item and its request. */
export interface ItemInfo {
  readonly ordinal: number;
  readonly key: string;
  readonly meta: Meta;
  /** The run's parameters. */
  readonly params: Readonly<Record<string, string>>;
  /**
   * The same for every delivery and attempt of the item, and different after a rerun. To make an effect happen once,
   * store the key with it.
   */
  readonly idempotencyKey: string;
  /** Another step's result for the item: any JSON, or a Binary; undefined without one. One that fits no request is fetched. */
  part(name: string): Promise<unknown>;
}

/** The common part of items of lists and of flows. */
export class BaseItem implements ItemInfo {
  readonly ordinal: number;
  readonly key: string;
  /** @internal */ answered = false;
  readonly #parts: RawItem['p'];
  readonly #job: Job;

  /** @internal */
  constructor(job: Job, ordinal: number, key: string, parts?: RawItem['p']) {
    this.#job = job;
    this.#parts = parts;
    this.ordinal = ordinal;
    this.key = key;
  }

  get meta(): Meta {
    return this.#job.head;
  }

  get params(): Readonly<Record<string, string>> {
    return this.#job.params;
  }

  get idempotencyKey(): string {
    return this.#job.idempotencyKey(this.ordinal, this.key);
  }

  async part(name: string): Promise<unknown> {
    const part = this.#parts && Object.hasOwn(this.#parts, name) ? this.#parts[name] : undefined;
    if (part?.r) {
      const data = await fetchPart(this.#job, this.ordinal, name, part.r);
      return part.t ? new Binary(data, part.t) : JSON.parse(data.toString());
    }
    if (!part || part.b === undefined) return part?.d;
    return new Binary(Buffer.from(part.b, 'base64'), part.t);
  }

  /** @internal Only the first answer counts, and none after the handler has returned. */
  answer(result: unknown): Promise<void> | undefined {
    if (this.answered || this.#job.closed) return undefined;
    this.answered = true;
    return this.#job.reply.add(this.ordinal, result);
  }

  /** @internal Answers with an error of the library. */
  giveUp(failure: Failure): void {
    if (this.answered) return;
    this.answered = true;
    this.#job.reply.fail(this.ordinal, failure);
  }
}

/** @internal Reads an item's payload; if it does not fit, fails the item and returns false. */
export function readPayload<In>(endpoint: Endpoint, item: BaseItem, payload: unknown, take: (input: In) => void): boolean {
  const { read } = endpoint.options;
  try {
    take((read && payload !== undefined ? read(payload) : payload) as In);
    return true;
  } catch (err) {
    void item.answer(new Failure('bad_payload', said(err)));
    return false;
  }
}
