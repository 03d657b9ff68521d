// The protocol of docs/protocol.md: subjects, headers, codes, and parsing. Nothing here uses a connection.

import { isUtf8 } from 'node:buffer';
import { createHash } from 'node:crypto';

import { type MsgHdrs, headers } from '@nats-io/transport-node';
import { Decompress } from 'fzstd';

/** @internal */ export const WORK = 'TRANCHE_WORK';
/** @internal */ export const STAGE = 'TRANCHE_STAGE';
/** @internal */ export const FLOW = 'TRANCHE_FLOW';

/** @internal */ export const MAX_BODY = 16 * 1024 * 1024; // of a body, decompressed
/** @internal */ export const MAX_RESULT = 64 * 1024 * 1024; // of one that goes in pieces
/** @internal */ export const MAX_ITEMS = 8192; // of a request, and requests of a stage
/** @internal */ export const MAX_STACK = 16;
/** @internal */ export const MAX_STAGES = 64;
const MAX_DELIVERIES = 20;
const DEFAULT_DELIVERIES = 12;

const NAME = /^[A-Za-z0-9_-]{1,64}$/;
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;
const NUMBER = /^\d{1,10}$/;
const POSITIVE = /^0*[1-9]\d{0,9}$/;

/** Throws if a name is not a valid endpoint name. */
export function checkName(name: string): string {
  if (!NAME.test(name)) throw new TypeError(`invalid name "${name}"; use 1 to 64 of A-Z a-z 0-9 _ -`);
  return name;
}

/**
 * An error with a code. It answers an item or, thrown by a handler, applies to all unanswered items of the chunk. The
 * code groups errors in listings and reruns: 1 to 64 of A-Z a-z 0-9 _ . - (others become _). `retry` says whether a
 * retry may help.
 */
export class Failure extends Error {
  readonly code: string;
  readonly retry: boolean;

  constructor(code: string, message = '', retry = false) {
    super(cut(message, 2048));
    this.name = 'Failure';
    this.code = code.replace(/[^A-Za-z0-9_.-]/g, '_').slice(0, 64) || 'handler_error';
    this.retry = retry;
  }

  toJSON(): { code: string; message: string; retry: boolean } {
    return { code: this.code, message: this.message, retry: this.retry };
  }
}

/** Bytes with a content type: a result, an answer or another step's part. */
export class Binary {
  readonly data: Uint8Array;
  readonly type: string;

  constructor(data: Uint8Array, type = 'application/octet-stream') {
    this.data = data;
    this.type = type;
  }
}

/** The metadata in a request's headers. */
export interface Meta {
  readonly run: string;
  /** This attempt at these items. */
  readonly slice: string;
  readonly step: number;
  /** How often these items were issued, from 1. */
  readonly attempt: number;
  /** How often the run was started, from 1; a rerun adds one. */
  readonly generation: number;
  /** `single`: a caller waits for the one item. */
  readonly mode: 'batch' | 'single';
  /** The endpoints that wait for the answer, outermost first, such as `statement:1,accounts:2`. */
  readonly stack: string;
  /** The node's slice at the origin of this request. */
  readonly root: string;
  /** The original requester, for display. */
  readonly origin: string;
  /** The collector whose operations the items are, or "". */
  readonly collector: string;
}

/** W3C trace context. */
export interface Trace {
  traceparent: string;
  tracestate: string;
}

/** @internal Metadata that handlers do not see. */
export interface Head extends Meta {
  readonly replyTo: string;
  readonly deliveries: number;
  readonly requeued: number;
  readonly encoding: string;
  readonly trace: Trace;
}

/** @internal A part that did not fit its request. */
export interface PartRef {
  readonly bytes: number;
  readonly sha256: string;
}

/** @internal An item of a request. */
export interface RawItem {
  readonly i: number;
  readonly k: string;
  readonly d?: unknown;
  readonly p?: Record<string, { d?: unknown; t?: string; b?: string; r?: PartRef }>;
}

/** @internal */
export interface Body {
  readonly items: RawItem[];
  readonly params: Record<string, string>;
}

/** @internal Thrown for a request of another protocol version. */
export class Foreign extends Error {}

/** @internal A slot of a reply, unparsed. */
export interface Slot {
  readonly i: number;
  readonly d?: unknown;
  readonly t?: string;
  readonly b?: string;
  readonly e?: { code: string; message?: string; retry?: boolean };
}

/** @internal A message of a reply. */
export interface ReplyMessage {
  readonly slots: Slot[];
  readonly failure?: Failure;
  /** Only in the final message: number of slots in the whole reply. */
  readonly final?: number;
}

/** @internal Parses a request's headers; throws if they are invalid. */
export function readHead(head: MsgHdrs | undefined, endpoint: string): Head {
  const get = (name: string): string => head?.get(name) ?? '';
  const need = (name: string, form: RegExp): string => {
    const value = get(name);
    if (!form.test(value)) throw new Error(`${name} is "${value.slice(0, 60)}"`);
    return value;
  };
  const may = (name: string, form: RegExp): string => (get(name) === '' ? '' : need(name, form));
  if (get('Tranche-Version') !== '1') {
    need('Tranche-Version', /./);
    throw new Foreign(`Tranche-Version is ${get('Tranche-Version').slice(0, 60)}; this service speaks 1`);
  }
  const slice = need('Tranche-Slice', UUID);
  return {
    run: need('Tranche-Run', UUID),
    slice,
    step: Number(need('Tranche-Step', NUMBER)),
    attempt: Number(need('Tranche-Attempt', POSITIVE)),
    generation: Number(need('Tranche-Generation', POSITIVE)),
    mode: (may('Tranche-Mode', /^(batch|single)$/) || 'batch') as Meta['mode'],
    stack: may('Tranche-Stack', /^[\w-]{1,64}:\d{1,2}(:[\w-]{1,64})?(,[\w-]{1,64}:\d{1,2}(:[\w-]{1,64})?)*$/),
    root: may('Tranche-Root', UUID) || slice,
    origin: get('Tranche-Origin').slice(0, 256),
    collector: get('Tranche-Collector'),
    requeued: Number(may('Tranche-Requeued', NUMBER) || 0),
    deliveries: Math.min(Number(may('Tranche-Deliveries', POSITIVE) || DEFAULT_DELIVERIES), MAX_DELIVERIES),
    encoding: get('Content-Encoding'),
    replyTo: readReplyTo(get('Tranche-Reply-To'), endpoint),
    trace: { traceparent: get('traceparent'), tracestate: get('tracestate') },
  };
}

/** @internal Throws if a stream has relayed the message, on behalf of a user who may lack the permission. */
export function checkOrigin(head: MsgHdrs | undefined): void {
  if (head?.has('Nats-Stream')) throw new Error('a server has published it from a stream');
}

/** @internal The number of waiting endpoints. */
export function depth(stack: string): number {
  return stack === '' ? 0 : stack.split(',').length;
}

const RETURN = /^tranche\.(?:stage\.([\w-]{1,64})\.([1-9]\d?)\.(0|[1-9]\d{0,3})|call\.[\w-]{1,64}\.[\w-]{1,64})\.([\w-]{1,64})$/;

// Returns the subject of the reply. Its last token is the endpoint that may reply there.
function readReplyTo(subject: string, endpoint: string): string {
  if (subject === '') return `tranche.reply.${endpoint}`;
  const match = RETURN.exec(subject);
  const small = match && Number(match[2] ?? 1) < MAX_STAGES && Number(match[3] ?? 0) < MAX_ITEMS;
  if (!small || match[4] !== endpoint) throw new Error(`Tranche-Reply-To is "${subject.slice(0, 100)}"`);
  return subject;
}

/** @internal Parses the subject of a reply to a stage. */
export function readStage(subject: string): { flow: string; stage: number; request: number; callee: string } {
  const [, flow, stage, request, callee] = RETURN.exec(subject) ?? [];
  if (!flow || !callee || Number(stage) >= MAX_STAGES || Number(request) >= MAX_ITEMS) {
    throw new Error(`subject "${subject.slice(0, 200)}" leads to no stage`);
  }
  return { flow, stage: Number(stage), request: Number(request), callee };
}

/** @internal Parses a request's items and parameters; throws a Failure if they are invalid. */
export function readBody(encoding: string, data: Uint8Array): Body {
  try {
    const body = readJSON(encoding, data) as { items: RawItem[]; params?: Record<string, string> };
    const { items, params } = body;
    if (!Array.isArray(items) || items.length < 1 || items.length > MAX_ITEMS) {
      throw new Error(`"items" must have 1 to ${MAX_ITEMS} items`);
    }
    for (const { i, k, d, p } of items) {
      const carries = d !== undefined || (p !== undefined && p !== null);
      if (!Number.isInteger(i) || i < 0 || i > 2 ** 31 - 1 || typeof k !== 'string' || !carries) {
        throw new Error(`the item with "i" ${JSON.stringify(i)} must have "i", "k", and "d" or "p"`);
      }
      if (p) checkParts(p);
    }
    return { items, params: params ?? {} };
  } catch (err) {
    throw new Failure('bad_request', `the request cannot be read: ${said(err)}`);
  }
}

function checkParts(parts: NonNullable<RawItem['p']>): void {
  for (const [name, { d, b, r }] of Object.entries(parts)) {
    const members = [d, b, r].filter((member) => member !== undefined);
    if (members.length !== 1) throw new Error(`part "${name}" must have exactly one of "d", "b" and "r"`);
    if (r && !(Number.isInteger(r.bytes) && r.bytes >= 0 && r.bytes <= MAX_RESULT)) {
      throw new Error(`part "${name}" must have 0 to ${MAX_RESULT} bytes`);
    }
  }
}

/** @internal Parses a message of a reply. */
export function readReply(head: MsgHdrs | undefined, data: Uint8Array): ReplyMessage {
  const get = (name: string): string => head?.get(name) ?? '';
  if (get('Tranche-Version') !== '1') throw new Error(`Tranche-Version is "${get('Tranche-Version').slice(0, 60)}"`);
  if (get('Tranche-Piece') !== '') throw new Error('a partial result is for nodes only');
  const final = get('Tranche-Final');
  if (final !== '' && !NUMBER.test(final)) throw new Error(`Tranche-Final is "${final.slice(0, 60)}"`);
  const code = get('Nats-Service-Error-Code');
  let slots: Slot[] = [];
  let failure: Failure | undefined;
  if (data.length === 0 && code !== '') {
    failure = new Failure(code, get('Nats-Service-Error'), true);
  } else {
    const body = readJSON(get('Content-Encoding'), data) as { slots?: Slot[]; error?: Slot['e'] };
    slots = body.slots ?? [];
    if (!Array.isArray(slots) || slots.length > MAX_ITEMS) throw new Error('it has no "slots", or too many');
    for (const slot of slots) {
      const { i, d, b, e } = slot;
      const members = Number(d !== undefined) + Number(b !== undefined) + Number(e !== undefined);
      if (!Number.isInteger(i) || members !== 1) throw new Error(`the slot with "i" ${JSON.stringify(i)} is none`);
    }
    if (body.error) failure = new Failure(body.error.code, body.error.message ?? '', body.error.retry ?? false);
  }
  return { slots, ...(failure && { failure }), ...(final !== '' && { final: Number(final) }) };
}

/** @internal The content of a slot: a value, a Binary, or a Failure. */
export function slotValue({ d, b, t, e }: Slot): unknown {
  if (e) return new Failure(e.code, e.message ?? '', e.retry ?? false);
  return b === undefined ? d : new Binary(Buffer.from(b, 'base64'), t);
}

function readJSON(encoding: string, data: Uint8Array): unknown {
  const plain = decode(encoding, data);
  if (plain.length > MAX_BODY) throw new Error(`the body has more than ${MAX_BODY} bytes`);
  if (!isUtf8(plain)) throw new Error('it is not UTF-8');
  return JSON.parse(Buffer.from(plain.buffer, plain.byteOffset, plain.length).toString('utf8'));
}

function decode(encoding: string, data: Uint8Array): Uint8Array {
  if (encoding === '' || encoding === 'identity') return data;
  if (encoding !== 'zstd') throw new Error(`Content-Encoding is "${encoding.slice(0, 40)}"`);
  const parts: Uint8Array[] = [];
  let size = 0;
  const stream = new Decompress((part) => {
    size += part.length;
    if (size > MAX_BODY) throw new Error(`the body decompresses to more than ${MAX_BODY} bytes`);
    parts.push(part);
  });
  stream.push(data, true);
  return Buffer.concat(parts);
}

/** @internal A promise of another library is one, too. */
export function isLater<T>(result: T | PromiseLike<T>): result is PromiseLike<T> {
  return typeof (result as Partial<PromiseLike<T>> | null | undefined)?.then === 'function';
}

/** @internal Writes JSON that all readers of the protocol accept; undefined becomes null. It throws otherwise. */
export function writeJSON(value: unknown): string {
  if (isLater(value)) throw new TypeError('it is a promise; await it'); // JSON.stringify would write {}
  const text = JSON.stringify(value) ?? 'null';
  if (text.length > MAX_RESULT) return text; // too large to be read
  if (text.includes('null')) JSON.stringify(value, finite);
  if (text.includes('\\ud') && /(^|[^\\])(\\\\)*\\ud[89a-f]/.test(text)) {
    throw new Failure('lone_surrogate', 'it has half a character (a lone surrogate)');
  }
  if (text.length > 2 * MAX_DEPTH && deep(text)) throw new Failure('nested_too_deep', `it is nested over ${MAX_DEPTH} deep`);
  return text;
}

const MAX_DEPTH = 128;

// JSON.stringify would write null.
function finite(name: string, value: unknown): unknown {
  if (typeof value === 'number' && !Number.isFinite(value)) {
    throw new Failure('not_a_number', `its number${name && ` "${name}"`} is ${value}, which JSON does not have`);
  }
  return value;
}

function deep(text: string): boolean {
  let level = 0;
  for (let n = 0; n < text.length; n++) {
    const c = text.charCodeAt(n);
    if (c === 34) n = endOfString(text, n);
    else if (c === 123 || c === 91) {
      if (++level > MAX_DEPTH) return true;
    } else if (c === 125 || c === 93) {
      level--;
    }
  }
  return false;
}

// Returns the end of the JSON string that starts at a quote.
function endOfString(text: string, from: number): number {
  for (let end = text.indexOf('"', from + 1); end >= 0; end = text.indexOf('"', end + 1)) {
    let escapes = 0;
    while (text.charCodeAt(end - 1 - escapes) === 92) escapes++; // backslashes
    if (escapes % 2 === 0) return end;
  }
  return text.length;
}

/** @internal The first headers of a request or reply. */
export function metaFields(meta: Meta): [string, string][] {
  return [
    ['Tranche-Version', '1'], ['Tranche-Run', meta.run], ['Tranche-Slice', meta.slice],
    ['Tranche-Step', String(meta.step)], ['Tranche-Attempt', String(meta.attempt)],
    ['Tranche-Generation', String(meta.generation)], ['Tranche-Mode', meta.mode],
  ];
}

/** @internal */
export function traceFields({ traceparent, tracestate }: Trace): [string, string][] {
  if (traceparent === '') return [];
  return tracestate === '' ? [['traceparent', traceparent]]
    : [['traceparent', traceparent], ['tracestate', tracestate]];
}

/** @internal */
export function toHeaders(fields: Iterable<readonly [string, string]>): MsgHdrs {
  const all = headers();
  for (const [name, value] of fields) all.set(name, value);
  return all;
}

/** @internal At most that many bytes of a text, without a partial character at the end. */
export function cut(text: string, bytes: number): string {
  const all = Buffer.from(text);
  return (all.length <= bytes ? all : all.subarray(0, bytes)).toString().replace(/\uFFFD+$/, '');
}

/** @internal The message of anything thrown. */
export function said(err: unknown): string {
  return err instanceof Error ? err.message : String(err);
}

/** @internal A UUID derived from a name (version 5). */
export function uuid5(namespace: string, name: string): Buffer {
  const id = createHash('sha1').update(Buffer.from(namespace.replaceAll('-', ''), 'hex')).update(name).digest()
    .subarray(0, 16);
  id[6] = (id[6]! & 0x0f) | 0x50;
  id[8] = (id[8]! & 0x3f) | 0x80;
  return id;
}

/** @internal */
export function formatUUID(id: Buffer): string {
  return id.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
}
