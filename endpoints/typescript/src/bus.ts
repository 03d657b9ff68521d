// What a service needs of NATS. The test kit has an in-memory implementation.

import { setTimeout as pause } from 'node:timers/promises';

import { JetStreamApiError, type JetStreamClient, jetstream } from '@nats-io/jetstream';
import { type Msg, type MsgHdrs, type NatsConnection, PermissionViolationError } from '@nats-io/transport-node';

/** @internal A message found by its subject. */
export interface Stored {
  readonly headers: MsgHdrs;
  readonly data: Uint8Array;
  readonly sequence: number;
}

/** @internal */
export interface Bus {
  readonly maxPayload: number;
  /** Stores a message in JetStream, with retries under one Nats-Msg-Id for patience ms; resolves once stored. */
  store(subject: string, headers: MsgHdrs, body: Uint8Array, patience?: number): Promise<void>;
  /** Sends over core NATS; resolves once the server has it. */
  send(subject: string, headers: MsgHdrs, body: Uint8Array, reply?: string): Promise<void>;
  /** Returns the last message on a subject of stream TRANCHE_FLOW. */
  last(subject: string): Promise<Stored | undefined>;
  /** Replaces the message with a sequence (0: none); false if another writer was first. */
  replace(subject: string, sequence: number, headers: MsgHdrs, body: Uint8Array): Promise<boolean>;
  /** Calls take for each message on a subject. Call the result to stop. */
  listen(subject: string, take: (msg: Msg) => void): () => void;
  /** Sends a request over core NATS; resolves to its first answer. */
  request(subject: string, body: Uint8Array, timeout: number): Promise<Msg>;
  /** Whether an endpoint's instances read calls separately. */
  hasLane(endpoint: string): Promise<boolean>;
}

/** @internal Subject for publishing calls. */
export async function subjectOfCalls(bus: Bus, endpoint: string): Promise<string> {
  return `tranche.work.${endpoint}${(await bus.hasLane(endpoint)) ? '+' : ''}`;
}

/** @internal What JetStream says of a message that is too large for a stream: trying again is no use. */
export const TOO_LARGE = 10054;
/** @internal A stream that has no room. */
export const FULL = 10077;
const WRONG_SEQUENCE = [10071, 10164];
const ACK_TIMEOUT = 2_000;
const LANE_KNOWN = 5_000; // ms to cache that an endpoint reads calls separately; LANE_UNKNOWN: that it does not
const LANE_UNKNOWN = 1_000;
const LANE_TIMEOUT = 250; // ms; without an answer the request goes with the chunks
/** @internal */
export const PATIENCE = 30_000;

/** @internal JetStream's error code, or undefined. */
export function apiCode(err: unknown): number | undefined {
  return err instanceof JetStreamApiError ? err.code : undefined;
}

interface KnownLane {
  until: number;
  has: Promise<boolean>;
}

const lanes = new WeakMap<NatsConnection, Map<string, KnownLane>>();

/** @internal */
export class NatsBus implements Bus {
  readonly js: JetStreamClient;

  constructor(readonly nc: NatsConnection) {
    if (!lanes.has(nc)) lanes.set(nc, new Map());
    this.js = jetstream(nc, { timeout: ACK_TIMEOUT });
  }

  get maxPayload(): number {
    return this.nc.info?.max_payload ?? 1 << 20;
  }

  async store(subject: string, headers: MsgHdrs, body: Uint8Array, patience = PATIENCE): Promise<void> {
    const end = Date.now() + patience;
    for (let wait = 25; ; wait = Math.min(2 * wait, 500)) {
      try {
        await this.js.publish(subject, body, { headers, timeout: ACK_TIMEOUT, retries: 0 });
        return;
      } catch (err) {
        const hopeless = apiCode(err) === TOO_LARGE || isDenied(err) || isTooLarge(err);
        if (hopeless || this.nc.isClosed() || Date.now() + wait > end) throw err;
      }
      await pause(wait);
    }
  }

  send(subject: string, headers: MsgHdrs, body: Uint8Array, reply?: string): Promise<void> {
    this.nc.publish(subject, body, { headers, ...(reply && { reply }) });
    return this.nc.flush();
  }

  async last(subject: string): Promise<Stored | undefined> {
    const msg = await this.nc.request(`$JS.API.DIRECT.GET.TRANCHE_FLOW.${subject}`, undefined, { timeout: ACK_TIMEOUT });
    const code = msg.headers?.code ?? 0;
    if (code === 404) return undefined;
    if (code !== 0 || !msg.headers) throw new Error(`get ${subject}: ${code} ${msg.headers?.description ?? ''}`);
    return { headers: msg.headers, data: msg.data, sequence: Number(msg.headers.get('Nats-Sequence')) };
  }

  async replace(subject: string, sequence: number, headers: MsgHdrs, body: Uint8Array): Promise<boolean> {
    try {
      await this.js.publish(subject, body,
        { headers, timeout: ACK_TIMEOUT, retries: 0, expect: { lastSubjectSequence: sequence } });
      return true;
    } catch (err) {
      if (WRONG_SEQUENCE.includes(apiCode(err) ?? 0)) return false;
      throw err;
    }
  }

  request(subject: string, body: Uint8Array, timeout: number): Promise<Msg> {
    return this.nc.request(subject, body, { timeout });
  }

  listen(subject: string, take: (msg: Msg) => void): () => void {
    const sub = this.nc.subscribe(subject, { callback: (err, msg) => (err ? undefined : take(msg)) });
    return () => sub.unsubscribe();
  }

  // The first instance to answer speaks for all.
  hasLane(endpoint: string): Promise<boolean> {
    const all = lanes.get(this.nc)!;
    const known = all.get(endpoint);
    if (known && Date.now() < known.until) return known.has;
    const asked: KnownLane = { until: Date.now() + LANE_UNKNOWN, has: this.#askLane(endpoint) };
    void asked.has.then((has) => { if (has) asked.until = Date.now() + LANE_KNOWN; });
    all.set(endpoint, asked);
    return asked.has;
  }

  async #askLane(endpoint: string): Promise<boolean> {
    try {
      const msg = await this.nc.request(`tranche.status.${endpoint}`, undefined, { timeout: LANE_TIMEOUT });
      return msg.json<{ lane?: unknown }>().lane === true;
    } catch {
      return false; // no answer, or no permission
    }
  }
}

/** @internal */
export function isDenied(err: unknown): boolean {
  return err instanceof PermissionViolationError || (err instanceof Error && err.cause instanceof PermissionViolationError);
}

function isTooLarge(err: unknown): boolean {
  return err instanceof Error && /max_payload/.test(err.message);
}
