// Calls: sending items to an endpoint and waiting for the answers, without a run.

import { randomUUID } from 'node:crypto';

import type { Msg, NatsConnection } from '@nats-io/transport-node';

import { type Bus, FULL, NatsBus, PATIENCE, apiCode, subjectOfCalls } from './bus';
import { current } from './job';
import { Service } from './service';
import {
  Failure, MAX_BODY, MAX_ITEMS, MAX_STACK, type Meta, type Slot, type Trace, checkName, depth, metaFields, readReply, said,
  slotValue, toHeaders, traceFields, writeJSON,
} from './wire';

const WINDOW = 16; // unanswered requests of a call
const DIRECT_WINDOW = 4;
const RESERVE = 1024;
const MAX_PARAMS = 16 * 1024;

export interface CallOptions {
  /** Uses core NATS: nothing is stored, and the call fails immediately if no service listens. */
  direct?: boolean;
  /** The caller's name, part of the subject for answers. Default: the endpoint whose handler calls, or `caller`. */
  caller?: string;
  /** The original requester, for display. */
  origin?: string;
  params?: Record<string, string>;
  /** Milliseconds, for the whole call. Default 30,000. */
  timeout?: number;
  /** Ends the call early. */
  signal?: AbortSignal;
  /** The trace to continue. Default: that of the request whose handler calls. */
  trace?: Trace;
}

export interface CallItem<In = unknown> {
  readonly key: string;
  readonly in: In;
}

/** The outcome of an item: out, or error. */
export interface CallResult<Out = unknown> {
  readonly key: string;
  readonly out?: Out;
  readonly error?: Failure;
}

/** Not all items were answered before the timeout, but may have been processed. `results` has the answers so far. */
export class UnansweredError extends Error {
  constructor(endpoint: string, readonly results: CallResult[], cause: unknown) {
    super(`endpoint ${endpoint} did not answer: ${said(cause)}`, { cause });
    this.name = 'UnansweredError';
  }
}

/** No service listens; thrown immediately by direct calls. */
export class NoListenersError extends Error {
  constructor(endpoint: string) {
    super(`no service listens for direct requests to endpoint ${endpoint}`);
    this.name = 'NoListenersError';
  }
}

/**
 * Sends one item to an endpoint and resolves to its result. It rejects with a Failure if the endpoint answers with an
 * error, and with an UnansweredError or NoListenersError if there is no answer.
 *
 * Each call is a separate run, so handlers see a new idempotency key each time. In a handler, the call continues the
 * trace and counts towards the limit of endpoints that wait for one another. The handler keeps its slot while
 * waiting; a flow does not.
 */
export async function call<Out = unknown>(
  by: NatsConnection | Service, endpoint: string, key: string, input: unknown, options: CallOptions = {},
): Promise<Out> {
  const [result] = await new Call<Out>(by, endpoint, [{ key, in: input }], 'single', options).run();
  if (result!.error) throw result!.error;
  return result!.out as Out;
}

/** Sends a list, in as many requests as needed. Results are in the order of items and hold the errors of items. */
export async function callList<Out = unknown>(
  by: NatsConnection | Service, endpoint: string, items: CallItem[], options: CallOptions = {},
): Promise<CallResult<Out>[]> {
  return new Call<Out>(by, endpoint, items, 'batch', options).run();
}

interface Request {
  readonly first: number;
  readonly next: number;
  left: number;
  readonly slots: Set<number>; // ordinals, also of unrequested items
  whole: boolean; // the final message held all slots
  final: number | undefined;
  failure: Failure | undefined;
  done: () => void;
}

class Call<Out> {
  readonly #bus: Bus;
  readonly #meta: Meta;
  readonly #trace: Trace;
  readonly #answersTo: string;
  readonly #results: (CallResult<Out> | undefined)[];
  readonly #requests = new Map<string, Request>(); // by slice
  readonly #params: string;
  readonly #timeout: number;
  #left: number;
  #end: (err?: unknown) => void = () => {};

  constructor(
    by: NatsConnection | Service, readonly endpoint: string, readonly items: CallItem[], mode: Meta['mode'],
    readonly options: CallOptions,
  ) {
    const from = current.getStore();
    const head = from?.head;
    checkName(endpoint);
    const caller = checkName(options.caller ?? from?.endpoint.name ?? 'caller');
    this.#bus = by instanceof Service ? by.bus : new NatsBus(by);
    this.#timeout = options.timeout ?? 30_000;
    this.#trace = options.trace ?? from?.reply.trace ?? { traceparent: '', tracestate: '' };
    const frame = from ? `${from.endpoint.name}:0` : '';
    const stack = head?.stack ? `${head.stack},${frame}` : frame;
    if (depth(stack) > MAX_STACK) {
      throw new Failure('stack_too_deep', `more than ${MAX_STACK} endpoints would wait for one another; is there a circle? ${stack}`);
    }
    this.#meta = {
      run: randomUUID(), slice: '', step: 0, attempt: 1, generation: 1, mode, stack, root: head?.root ?? '', collector: '',
      origin: [...(options.origin ?? head?.origin ?? '').replace(/[^\x20-\x7e]/g, '?')].slice(0, 256).join(''),
    };
    this.#answersTo = `tranche.call.${caller}.${randomUUID().replaceAll('-', '')}.${endpoint}`;
    this.#results = items.map(() => undefined);
    this.#left = items.length;
    const { params = {} } = options;
    this.#params = Object.keys(params).length > 0 ? `"params":${JSON.stringify(params)},` : '';
    if (this.#params.length > MAX_PARAMS) throw new TypeError(`the parameters take over ${MAX_PARAMS} bytes`);
  }

  async run(): Promise<CallResult<Out>[]> {
    const { options, endpoint } = this;
    const unlisten = this.#bus.listen(this.#answersTo, (msg) => this.#take(msg));
    const timer = setTimeout(() => this.#end(new Error(`nothing came within ${this.#timeout} ms`)), this.#timeout);
    const ended = new Promise<unknown>((end) => { this.#end = end; });
    const abort = (): void => this.#end(options.signal?.reason ?? new Error('the call was ended'));
    options.signal?.addEventListener('abort', abort);
    if (options.signal?.aborted) abort();
    try {
      let over = false;
      void ended.then(() => { over = true; });
      this.#publish(() => over).catch((err: unknown) => this.#end(err));
      if (this.#left === 0) this.#end();
      const err = await ended;
      if (err instanceof NoListenersError) throw err;
      const none = new Failure('unanswered', `endpoint ${endpoint} did not answer: ${said(err)}`, true);
      const results = this.#results.map((result, n) => result ?? { key: this.items[n]!.key, error: none });
      if (this.#left > 0) throw new UnansweredError(endpoint, results, err);
      return results;
    } finally {
      clearTimeout(timer);
      unlisten();
      options.signal?.removeEventListener('abort', abort);
    }
  }

  // Cuts the items into requests and sends them, up to a window of unanswered ones.
  async #publish(over: () => boolean): Promise<void> {
    const { items, endpoint, options } = this;
    const seconds = Math.max(1, Math.ceil(this.#timeout / 1000));
    const under = new Set<Promise<void>>();
    const calls = !options.direct && this.#meta.mode === 'single';
    const subject = calls ? await subjectOfCalls(this.#bus, endpoint) : `tranche.work.${endpoint}`;
    for (let n = 0; n < items.length && !over();) {
      const slice = randomUUID();
      const fields: [string, string][] = [...metaFields({ ...this.#meta, slice }), ...traceFields(this.#trace),
        ['Tranche-Reply-To', this.#answersTo], ['Nats-Msg-Id', slice]];
      const { stack, root, origin } = this.#meta;
      if (stack) fields.push(['Tranche-Stack', stack]);
      if (root) fields.push(['Tranche-Root', root]);
      if (origin) fields.push(['Tranche-Origin', origin]);
      if (!options.direct) fields.push(['Nats-TTL', String(seconds)]);
      const { body, first, next } = this.#cut(n, fields);
      n = next;
      if (!body) continue;
      const answered = new Promise<void>((done) => {
        this.#requests.set(slice, { first, next, left: 0, slots: new Set(), whole: false, final: undefined, failure: undefined, done });
      });
      this.#requests.get(slice)!.left = this.#results.slice(first, next).filter((result) => !result).length;
      const headers = toHeaders(fields);
      if (options.direct) await this.#bus.send(`tranche.direct.${endpoint}`, headers, body, this.#answersTo);
      else await this.#store(subject, headers, body, over);
      under.add(answered);
      void answered.then(() => under.delete(answered));
      while (under.size >= (options.direct ? DIRECT_WINDOW : WINDOW) && !over()) await Promise.race(under);
    }
  }

  async #store(
    subject: string, headers: ReturnType<typeof toHeaders>, body: Uint8Array, over: () => boolean,
  ): Promise<void> {
    try {
      await this.#bus.store(subject, headers, body, Math.min(this.#timeout, PATIENCE));
    } catch (err) {
      if (!over()) throw apiCode(err) === FULL ? new Error('stream TRANCHE_WORK is full', { cause: err }) : err;
    }
  }

  // Builds one request from the items starting with from. Items that cannot be sent are answered with an error.
  #cut(from: number, fields: [string, string][]): { body: Buffer | undefined; first: number; next: number } {
    const size = fields.reduce((n, pair) => n + Buffer.byteLength(pair.join(': \r\n')), 0) + this.#params.length * 3;
    const limit = Math.min(this.#bus.maxPayload - size - RESERVE, MAX_BODY);
    const texts: string[] = [];
    let bytes = 0;
    let n = from;
    for (; n < this.items.length && texts.length < MAX_ITEMS; n++) {
      const { key, in: input } = this.items[n]!;
      let text;
      try {
        text = `{"i":${n},"k":${JSON.stringify(key)},"d":${writeJSON(input)}}`;
      } catch (err) {
        this.#answer(n, { error: new Failure('bad_query', `the question to ${this.endpoint} cannot be written: ${said(err)}`) });
        continue;
      }
      const more = Buffer.byteLength(text) + 1;
      if (more > limit) {
        this.#answer(n, { error: new Failure('query_too_large', `the question to ${this.endpoint} takes ${more} bytes, which does `
          + 'not fit a message; ask with where the data is') });
        continue;
      }
      if (bytes + more > limit) break;
      texts.push(text);
      bytes += more;
    }
    const body = texts.length > 0 ? Buffer.from(`{${this.#params}"items":[${texts.join(',')}]}`) : undefined;
    return { body, first: from, next: n };
  }

  #take(msg: Msg): void {
    if (msg.headers?.code === 503) {
      this.#end(new NoListenersError(this.endpoint));
      return;
    }
    const request = this.#requests.get(msg.headers?.get('Tranche-Slice') ?? '');
    if (!request) return;
    try {
      const { slots, failure, final } = readReply(msg.headers, msg.data);
      for (const slot of slots) this.#slot(request, slot);
      if (final !== undefined && request.final === undefined) {
        [request.final, request.failure, request.whole] = [final, failure, slots.length >= final];
      }
    } catch (err) {
      this.#end(new Error(`the reply of endpoint ${this.endpoint} cannot be read: ${said(err)}`));
      return;
    }
    if (request.final !== undefined && (request.whole || request.slots.size >= request.final)) {
      const left = request.failure ?? new Failure('unanswered', `endpoint ${this.endpoint} has left the item out`, true);
      for (let n = request.first; n < request.next; n++) if (!this.#results[n]) this.#answer(n, { error: left });
      request.left = 0;
    }
    if (request.left === 0) request.done();
  }

  #slot(request: Request, slot: Slot): void {
    request.slots.add(slot.i);
    if (slot.i < request.first || slot.i >= request.next || this.#results[slot.i]) return;
    request.left--;
    this.#answer(slot.i, slot.e ? { error: slotValue(slot) as Failure } : { out: slotValue(slot) as Out });
  }

  #answer(n: number, result: { out?: Out; error?: Failure }): void {
    this.#results[n] = { key: this.items[n]!.key, ...result };
    if (--this.#left === 0) this.#end();
  }
}
