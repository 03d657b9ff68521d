// A test kit: runs a service's endpoints in a unit test, without a server and without a node, by the same code that reads
// requests and writes replies on the wire.

import { createHash, randomUUID } from 'node:crypto';

import type { Msg, MsgHdrs } from '@nats-io/transport-node';

import type { Bus, Stored } from './bus';
import { FlowEndpoint } from './flow';
import type { Delivery } from './puller';
import { Service, type ServiceOptions } from './service';
import {
  Binary, Failure, MAX_BODY, type Meta, type RawItem, type Slot, metaFields, readBody, readHead, readReply, slotValue, toHeaders,
  writeJSON,
} from './wire';

const MAX_DELIVERED = 20;

/** An item to send, with a payload, parts of other steps, or both. */
export interface KitItem {
  readonly key: string;
  readonly in?: unknown;
  /** Parts by step name: any JSON, or a Binary. */
  readonly parts?: Record<string, unknown>;
}

export interface SendOptions {
  params?: Record<string, string>;
  /** Header values to use instead of generated ones. */
  meta?: Partial<Pick<Meta, 'run' | 'slice' | 'step' | 'attempt' | 'generation' | 'mode' | 'origin'>>;
}

/** A sent request, to redeliver or reissue. */
export interface KitRequest {
  readonly endpoint: string;
  readonly items: readonly KitItem[];
  readonly options: SendOptions;
  readonly slice: string;
}

/** An item as seen by a called endpoint. */
export interface Asked {
  readonly key: string;
  readonly ordinal: number;
  readonly query: unknown;
}

/** The whole reply to a request. */
export class KitReply {
  readonly #answers = new Map<string, unknown>();

  /** @internal */
  constructor(readonly request: KitRequest, answers: Map<number, unknown>, readonly failure: Failure | undefined, readonly messages: number) {
    request.items.forEach(({ key }, n) => {
      if (answers.has(n)) this.#answers.set(key, answers.get(n));
    });
  }

  /** The result of an item; throws if it has none. */
  result<Out = unknown>(key: string): Out {
    const answer = this.#answers.get(key);
    if (answer instanceof Failure) throw new Error(`${key} has the error ${answer.code}: ${answer.message}`);
    if (!this.#answers.has(key)) throw new Error(`${key} has no answer${this.failure ? `; ${this.failure.code}: ${this.failure.message}` : ''}`);
    return answer as Out;
  }

  /** The error of an item, or undefined. */
  error(key: string): Failure | undefined {
    const answer = this.#answers.get(key);
    return answer instanceof Failure ? answer : undefined;
  }

  /** Whether the item has an answer; otherwise it is retried. */
  answered(key: string): boolean {
    return this.#answers.has(key);
  }
}

export interface KitOptions extends Partial<ServiceOptions> {
  /** Maximum bytes of a message; larger replies are split. Default 1 MiB. */
  maxPayload?: number;
}

/**
 * Serves what is added to `service`:
 *
 *     const kit = new Kit();
 *     handleList(kit.service, 'interest', yearEnd);
 *     const reply = await kit.send('interest', [{ key: 'ACC-1', in: { cents: 20000 } }]);
 *     assert.equal(reply.result('ACC-1').cents, 300);
 */
export class Kit {
  readonly service: Service;
  readonly #bus: MemoryBus;

  constructor(options: KitOptions = {}) {
    this.#bus = new MemoryBus(options.maxPayload ?? 1 << 20);
    this.service = new Service(undefined as never, { name: 'kit', log: () => {}, ...options }, this.#bus);
    this.#bus.service = this.service;
  }

  /** Sends a request as a node does, and returns the whole reply. */
  send(endpoint: string, items: readonly KitItem[], options: SendOptions = {}): Promise<KitReply> {
    return this.#send({ endpoint, items, options, slice: options.meta?.slice ?? randomUUID() }, 1);
  }

  /** Delivers a request again, as after a crash before its acknowledgement. */
  redeliver(reply: KitReply): Promise<KitReply> {
    return this.#send(reply.request, 2);
  }

  /** Sends items again in a new slice, as a node does for a retry or a split. Without keys: all of them. */
  reissue(reply: KitReply, ...keys: string[]): Promise<KitReply> {
    const { endpoint, items, options } = reply.request;
    const { attempt = 1 } = options.meta ?? {};
    const again = keys.length === 0 ? items : items.filter(({ key }) => keys.includes(key));
    return this.#send({ endpoint, items: again, slice: randomUUID(), options: {
      ...options, meta: { ...options.meta, run: this.#bus.runOf(reply.request), attempt: attempt + 1 } } }, 1, items);
  }

  /**
   * Replaces an endpoint that flows and calls use. answer returns a value, a Binary or a Failure for each item, in
   * order, or undefined to leave one out. A Failure that it throws applies to all items.
   */
  stub(endpoint: string, answer: (asked: Asked[], params: Record<string, string>) => unknown[]): void {
    this.#bus.stubs.set(endpoint, answer);
  }

  /** Loses an endpoint's next reply, as a crash does, and delivers the request again. */
  loseReply(endpoint: string): void {
    this.#bus.lost.add(endpoint);
  }

  #send(request: KitRequest, deliveries: number, all = request.items): Promise<KitReply> {
    const { endpoint, items, options, slice } = request;
    const run = this.#bus.runOf(request);
    const meta: Meta = { step: 0, attempt: 1, generation: 1, mode: 'batch', stack: '', root: '', origin: '', collector: '',
      ...options.meta, run, slice };
    const fields = metaFields(meta);
    if (meta.origin) fields.push(['Tranche-Origin', meta.origin]);
    const body = { ...(options.params && { params: options.params }), items: items.map((item) => rawItem(item, all.indexOf(item))) };
    return this.#bus.ask({ ...request, items: all }, toHeaders(fields), Buffer.from(writeJSON(body)), deliveries, endpoint);
  }
}

function rawItem({ key, in: input, parts }: KitItem, i: number): RawItem {
  const p = parts && Object.fromEntries(Object.entries(parts).map(([name, value]) => [name, value instanceof Binary
    ? { t: value.type, b: Buffer.from(value.data).toString('base64') } : { d: value }]));
  return { i, k: key, ...((input !== undefined || !p) && { d: input ?? null }), ...(p && { p }) };
}

interface Waiting {
  readonly request: KitRequest;
  readonly answers: Map<number, unknown>;
  readonly pieces: Map<number, { parts: Uint8Array[]; type: string }>;
  slots: number;
  messages: number;
  final: number | undefined;
  failure: Failure | undefined;
  readonly done: (reply: KitReply) => void;
  readonly fail: (err: Error) => void;
}

class MemoryBus implements Bus {
  service!: Service;
  readonly stubs = new Map<string, (asked: Asked[], params: Record<string, string>) => unknown[]>();
  readonly lost = new Set<string>();
  readonly #runs = new WeakMap<readonly KitItem[], string>();
  readonly #waiting = new Map<string, Waiting>();
  readonly #kept = new Map<string, Stored>();
  readonly #listeners = new Map<string, (msg: Msg) => void>();
  #sequence = 0;

  constructor(readonly maxPayload: number) {}

  // A new run for each list of items, unless the request names one.
  runOf({ items, options }: KitRequest): string {
    const run = options.meta?.run ?? this.#runs.get(items) ?? randomUUID();
    this.#runs.set(items, run);
    return run;
  }

  ask(request: KitRequest, headers: MsgHdrs, body: Uint8Array, deliveries: number, endpoint: string): Promise<KitReply> {
    return new Promise((done, fail) => {
      this.#waiting.set(request.slice, { request, answers: new Map(), pieces: new Map(), slots: 0, messages: 0, final: undefined,
        failure: undefined, done, fail });
      this.#deliver(`tranche.work.${endpoint}`, headers, body, deliveries);
    });
  }

  async store(subject: string, headers: MsgHdrs, body: Uint8Array): Promise<void> {
    if (body.length > this.maxPayload) throw new Error(`a message of ${body.length} bytes exceeds max_payload`);
    if (body.length > MAX_BODY) throw new Error('a body has over 16 MiB');
    const [, kind, endpoint] = subject.split('.');
    if (kind === 'reply' && this.lost.delete(endpoint!)) throw new Error('the reply is lost, as the test wants it');
    await Promise.resolve();
    if (kind === 'flow') this.#kept.set(subject, { headers, data: body, sequence: ++this.#sequence });
    else if (kind === 'reply') this.#replied(headers, body);
    else this.#deliver(subject, headers, body, 1);
  }

  async send(subject: string, headers: MsgHdrs, body: Uint8Array, reply?: string): Promise<void> {
    const [, kind, endpoint] = subject.split('.');
    if (kind === 'direct') {
      if (this.service.endpoints.has(endpoint!) || this.stubs.has(endpoint!)) this.#deliver(subject, headers, body, 1);
      else if (reply) this.#listeners.get(reply)?.({ headers: { code: 503 } as MsgHdrs } as Msg);
    } else if (kind === 'flow') {
      this.#kept.set(subject, { headers, data: body, sequence: ++this.#sequence });
    } else {
      this.#listeners.get(subject)?.({ subject, headers, data: body } as Msg);
    }
  }

  async last(subject: string): Promise<Stored | undefined> {
    const kept = this.#kept.get(subject);
    if (!kept) return undefined;
    const fields = [...kept.headers].map(([name, values]): [string, string] => [name, values[0] ?? '']);
    return { ...kept, headers: toHeaders([...fields, ['Nats-Stream', 'TRANCHE_FLOW']]) }; // as a server does
  }

  async replace(subject: string, sequence: number, headers: MsgHdrs, body: Uint8Array): Promise<boolean> {
    if ((this.#kept.get(subject)?.sequence ?? 0) !== sequence) return false;
    this.#kept.set(subject, { headers, data: body, sequence: ++this.#sequence });
    return true;
  }

  async request(): Promise<Msg> {
    throw new Error('the kit sends parts whole');
  }

  async hasLane(): Promise<boolean> {
    return false; // the kit has no queue in which chunks could delay a call
  }

  listen(subject: string, take: (msg: Msg) => void): () => void {
    this.#listeners.set(subject, take);
    return () => this.#listeners.delete(subject);
  }

  // Delivers a message until it is settled permanently.
  #deliver(subject: string, headers: MsgHdrs, data: Uint8Array, deliveries: number): void {
    const [, kind, name = ''] = subject.split('.');
    const id = `${++this.#sequence}-0`;
    const once = (n: number): void => {
      const delivery: Delivery = { subject, headers, data, id, deliveries: n, stored: kind !== 'direct', settle: async (how) => {
        if (how.startsWith('-NAK') && n < MAX_DELIVERED) setTimeout(() => once(n + 1), 1);
        else if (how.startsWith('-NAK') || how.startsWith('+TERM')) {
          this.#fail(headers, new Error(`the request to ${name} was abandoned: ${how}`), how.startsWith('-NAK'));
        }
      } };
      this.#accept(delivery, kind!, name).catch((err: unknown) => this.#fail(headers, err as Error, true));
    };
    setImmediate(() => once(deliveries));
  }

  async #accept(delivery: Delivery, kind: string, name: string): Promise<void> {
    const endpoint = this.service.endpoints.get(name);
    if (kind === 'stage' && endpoint instanceof FlowEndpoint) return endpoint.deal(delivery);
    if (endpoint) return endpoint.accept(delivery);
    const stub = this.stubs.get(name);
    if (!stub) throw new Error(`no one serves endpoint ${name}, and there is no stub of it`);
    const head = readHead(delivery.headers, name);
    const { items, params } = readBody(head.encoding, delivery.data);
    let slots: Slot[] = [];
    let failure: Failure | undefined;
    try {
      const answers = stub(items.map(({ i, k, d }) => ({ ordinal: i, key: k, query: d })), params);
      slots = items.flatMap(({ i }, n) => (answers[n] === undefined ? [] : [slotOf(i, answers[n])]));
    } catch (err) {
      failure = err instanceof Failure ? err : new Failure('handler_error', String(err), true);
    }
    const fields: [string, string][] = [...metaFields(head), ['Tranche-Final', String(slots.length)]];
    const body = Buffer.from(writeJSON({ slots, ...(failure && { error: failure }) }));
    if (head.replyTo.startsWith('tranche.call.')) await this.send(head.replyTo, toHeaders(fields), body);
    else await this.store(head.replyTo, toHeaders(fields), body);
  }

  // Ends the waiting test for any request: a flow's questions have their own slices.
  #fail(headers: MsgHdrs, err: Error, all: boolean): void {
    const slice = headers.get('Tranche-Slice');
    const mine = this.#waiting.get(slice);
    for (const [key, { fail }] of this.#waiting) {
      if (mine ? key === slice : all) {
        this.#waiting.delete(key);
        fail(err);
      }
    }
  }

  #replied(headers: MsgHdrs, body: Uint8Array): void {
    const slice = headers.get('Tranche-Slice');
    const waiting = this.#waiting.get(slice);
    if (!waiting) return; // a duplicate
    waiting.messages++;
    const piece = headers.get('Tranche-Piece');
    if (piece) {
      this.#piece(waiting, piece.split(' '), headers.get('Content-Type'), body);
    } else {
      const { slots, failure, final } = readReply(headers, body);
      for (const slot of slots) this.#answer(waiting, slot.i, slotValue(slot));
      if (final !== undefined) [waiting.final, waiting.failure] = [final, failure];
    }
    if (waiting.final === undefined || waiting.answers.size < waiting.final) return;
    this.#waiting.delete(slice);
    waiting.done(new KitReply(waiting.request, waiting.answers, waiting.failure, waiting.messages));
  }

  #answer(waiting: Waiting, ordinal: number, value: unknown): void {
    if (!waiting.answers.has(ordinal)) waiting.answers.set(ordinal, value);
  }

  #piece(waiting: Waiting, [i, n, count, , hash]: string[], type: string, body: Uint8Array): void {
    const ordinal = Number(i);
    const open = waiting.pieces.get(ordinal) ?? { parts: [], type };
    waiting.pieces.set(ordinal, open);
    open.parts[Number(n) - 1] = body;
    if (open.parts.filter(Boolean).length < Number(count)) return;
    const data = Buffer.concat(open.parts);
    if (createHash('sha256').update(data).digest('hex') !== hash) throw new Error(`the pieces of item ${i} are damaged`);
    this.#answer(waiting, ordinal, type === 'application/json' ? JSON.parse(data.toString()) : new Binary(data, type));
  }
}

function slotOf(i: number, value: unknown): Slot {
  if (value instanceof Failure) return { i, e: value.toJSON() };
  if (value instanceof Binary) return { i, t: value.type, b: Buffer.from(value.data).toString('base64') };
  return { i, d: value };
}
