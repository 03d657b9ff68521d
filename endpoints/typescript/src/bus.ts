// What a service needs of NATS. The test kit has another one, in memory.

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
  /** Hands a message to JetStream; returns when it is acknowledged. Tries again under the same Nats-Msg-Id, for a while. */
  store(subject: string, headers: MsgHdrs, body: Uint8Array, patience?: number): Promise<void>;
  /** Sends over core NATS; returns when the server has it. */
  send(subject: string, headers: MsgHdrs, body: Uint8Array, reply?: string): Promise<void>;
  /** The last message on a subject of the stream of flows. */
  last(subject: string): Promise<Stored | undefined>;
  /** Stores a message in place of the one with a sequence (0: of none); false when someone else was ahead. */
  replace(subject: string, sequence: number, headers: MsgHdrs, body: Uint8Array): Promise<boolean>;
  /** Has take called with each message on a subject, until what is returned is called. */
  listen(subject: string, take: (msg: Msg) => void): () => void;
  /** Whether the instances of an endpoint read calls apart from chunks. */
  hasLane(endpoint: string): Promise<boolean>;
}

/** @internal Where what someone waits for is published. */
export async function subjectOfCalls(bus: Bus, endpoint: string): Promise<string> {
  return `tranche.work.${endpoint}${(await bus.hasLane(endpoint)) ? '+' : ''}`;
}

/** @internal What JetStream says of a message that is too large for a stream: trying again is no use. */
export const TOO_LARGE = 10054;
/** @internal A stream that has no room. */
export const FULL = 10077;
const WRONG_SEQUENCE = [10071, 10164];
const ACK_TIMEOUT = 2_000;
const LANE_KNOWN = 5_000; // ms; so long it is taken for true that an endpoint has a lane, and that it has none
const LANE_UNKNOWN = 1_000;
const LANE_TIMEOUT = 250; // ms; who hears nothing by then publishes where chunks go
/** @internal */
export const PATIENCE = 30_000;

/** @internal JetStream's own code of an error, or undefined. */
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

  listen(subject: string, take: (msg: Msg) => void): () => void {
    const sub = this.nc.subscribe(subject, { callback: (err, msg) => (err ? undefined : take(msg)) });
    return () => sub.unsubscribe();
  }

  // Of the instances the one that answers first speaks for all.
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
      return false; // no one answers, or no one may be asked
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
