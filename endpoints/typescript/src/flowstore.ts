// Suspended chunks, in messages found by subject, in the Go SDK's format (endpoints/README.md, Flows): nodes use it
// to tell a caller the outcome of its request.

import { randomUUID } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';

import type { MsgHdrs } from '@nats-io/transport-node';

import { type Bus, PATIENCE, type Stored } from './bus';
import { Failure, type Head, MAX_BODY, MAX_ITEMS, formatUUID, toHeaders, uuid5 } from './wire';

const RESERVE = 1024;
const MAX_PARTS = 1 << 14;
const LAG = [5, 20, 75]; // ms between reads of a message that must exist: the replica may be behind
const STATE_PATIENCE = 5_000;
const REQUEST_BITS = 0x1fff;

/** @internal Limit of a chunk's state, in bytes. */
export const MAX_STATE = 16 * 1024 * 1024;

/** @internal A chunk between two stages. */
export interface Suspended {
  readonly version: 1;
  readonly revision?: string;
  readonly stages: number;
  /** The next stage. */
  readonly stage: number;
  readonly params?: Record<string, string>;
  readonly total: number;
  readonly answered: number;
  readonly failure?: { code: string; message: string; retry: boolean };
  readonly requests: { target: string; endpoint: string; keep?: boolean }[];
  readonly shared?: unknown;
  /** Ordinal, key, state, and the indexes of the requests that the item waits for. */
  readonly items: { i: number; k: string; s?: unknown; r?: number[] }[];
}

/**
 * @internal A chunk is `gone` if it moved on for certain, `absent` if it may appear, and `torn` if a part is missing
 * because it is being rewritten or the replica is behind.
 */
export class Missing extends Error {
  constructor(readonly what: 'gone' | 'absent' | 'torn', message: string) {
    super(message);
  }
}

/** @internal A chunk as read. */
export interface Found {
  readonly headers: MsgHdrs;
  readonly body: Buffer;
  readonly parts: number;
}

/** @internal */
export class FlowStore {
  readonly #ttl: string;

  constructor(readonly bus: Bus, readonly endpoint: string, timeout: number) {
    this.#ttl = String(Math.max(1, Math.ceil(timeout / 1000)));
  }

  get ttl(): string {
    return this.#ttl;
  }

  subject(id: string, part: string | number): string {
    return `tranche.flow.${this.endpoint}.${id}.${part}`;
  }

  /** Stores a state, the first part last: a reader that finds it finds the rest. */
  async write(id: string, fields: [string, string][], body: Buffer): Promise<void> {
    const all: [string, string][] = [...fields, ['Nats-TTL', this.#ttl], ['Tranche-Flow-Write', randomUUID()]];
    const size = all.reduce((n, pair) => n + Buffer.byteLength(pair.join(': \r\n')), 0);
    const room = Math.min(this.bus.maxPayload - size - RESERVE, MAX_BODY);
    const parts = Math.max(1, Math.ceil(body.length / room));
    all.push(['Tranche-Flow-Parts', String(parts)]);
    for (let n = parts - 1; n >= 0; n--) {
      try {
        await this.bus.store(this.subject(id, n), toHeaders(all), body.subarray(n * room, (n + 1) * room), STATE_PATIENCE);
      } catch (err) {
        for (let done = n + 1; done < parts; done++) this.remove(id, [done]); // free their space
        throw err;
      }
    }
  }

  async read(id: string): Promise<Found> {
    return this.#again(() => this.#read(id));
  }

  async #read(id: string): Promise<Found> {
    const first = await this.get(this.subject(id, 0));
    const parts = Number(first.headers.get('Tranche-Flow-Parts'));
    if (!(parts >= 1 && parts <= MAX_PARTS)) throw new Error(`the state of ${id} is spoilt`);
    const bodies = [first.data];
    for (let n = 1, bytes = first.data.length; n < parts; n++) {
      const part = await this.get(this.subject(id, n)).catch(torn);
      if (part.headers.get('Tranche-Flow-Write') !== first.headers.get('Tranche-Flow-Write')) {
        throw new Missing('torn', `part ${n} of the state of ${id} is of another writing`);
      }
      if ((bytes += part.data.length) > MAX_STATE) throw new Error(`the state of ${id} has over ${MAX_STATE} bytes`);
      bodies.push(part.data);
    }
    return { headers: first.headers, body: Buffer.concat(bodies), parts };
  }

  /** Reads a message that exists, even if the replica is behind. */
  parked(id: string, name: string): Promise<Stored> {
    return this.#again(() => this.get(this.subject(id, name)).catch(torn));
  }

  async #again<T>(get: () => Promise<T>): Promise<T> {
    for (let n = 0; ; n++) {
      try {
        return await get();
      } catch (err) {
        const lag = LAG[n];
        if (!(err instanceof Missing) || err.what === 'gone' || lag === undefined) throw err;
        await pause(lag);
      }
    }
  }

  async get(subject: string): Promise<Stored> {
    const found = await this.bus.last(subject);
    if (!found) throw new Missing('absent', `${subject} does not exist`);
    if (found.headers.has('Tranche-Flow-Done')) throw new Missing('gone', `${subject} has continued`);
    return found;
  }

  store(subject: string, fields: [string, string][], body: Uint8Array): Promise<void> {
    return this.bus.store(subject, toHeaders([...fields, ['Nats-TTL', this.#ttl]]), body, PATIENCE);
  }

  replace(subject: string, sequence: number, body: Uint8Array): Promise<boolean> {
    return this.bus.replace(subject, sequence, toHeaders([['Nats-TTL', this.#ttl]]), body);
  }

  /** Marks parts for deletion without waiting. What it misses expires. */
  remove(id: string, parts: Iterable<string | number>): void {
    for (const part of parts) {
      const headers = toHeaders([['Nats-TTL', '1'], ['Tranche-Flow-Done', '1']]);
      void this.bus.send(this.subject(id, part), headers, new Uint8Array()).catch(() => {});
    }
  }
}

// Converts the error of reading a part of a chunk that exists.
function torn(err: unknown): never {
  throw err instanceof Missing && err.what === 'absent' ? new Missing('torn', err.message) : err;
}

/** @internal The ID of a chunk suspended after a stage, derived from its request. */
export function flowID(asker: Head, endpoint: string, stage: number): string {
  const name = `${endpoint}:${stage}${asker.requeued > 0 ? `:${asker.requeued}` : ''}`;
  const id = uuid5(asker.slice, name);
  id.writeUInt16BE(id.readUInt16BE(14) & ~REQUEST_BITS & 0xffff, 14);
  return formatUUID(id);
}

/** @internal The slice of one request of a suspended chunk. */
export function sliceOf(id: string, request: number): string {
  const bytes = Buffer.from(id.replaceAll('-', ''), 'hex');
  bytes.writeUInt16BE(bytes.readUInt16BE(14) | request, 14);
  return formatUUID(bytes);
}

/** @internal The inverse of sliceOf. */
export function splitSlice(slice: string): { id: string; request: number } {
  const bytes = Buffer.from(slice.replaceAll('-', ''), 'hex');
  if (bytes.length !== 16) throw new Error(`slice "${slice.slice(0, 60)}" is none`);
  const last = bytes.readUInt16BE(14);
  bytes.writeUInt16BE(last & ~REQUEST_BITS & 0xffff, 14);
  return { id: formatUUID(bytes), request: last & REQUEST_BITS };
}

/** @internal Parses a state and checks all that stages rely on, because streams are untrusted. */
export function readSuspended(body: Buffer): Suspended {
  const s = JSON.parse(body.toString()) as Suspended;
  const stage = s.stage >= 1 && s.stage < s.stages;
  if (s.version !== 1 || !stage || !Array.isArray(s.requests) || !Array.isArray(s.items)) throw new Error('the state is none');
  if (s.requests.length < 1 || s.requests.length > MAX_ITEMS || s.answered + s.items.length > s.total) {
    throw new Error('the state is none');
  }
  for (const { r } of s.items) if (r?.some((n) => !(n >= 0 && n < s.requests.length))) throw new Error('the state is none');
  return s;
}

/** @internal */
export function failureOf(failure: Suspended['failure']): Failure | undefined {
  return failure && new Failure(failure.code, failure.message, failure.retry);
}
