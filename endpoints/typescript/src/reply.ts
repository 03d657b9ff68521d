// Writes a reply: into as few messages as fit, with large results in pieces.

import { createHash, randomUUID } from 'node:crypto';
import { setImmediate as breathe } from 'node:timers/promises';

import type { MsgHdrs } from '@nats-io/transport-node';

import {
  Binary, Failure, type Head, MAX_BODY, MAX_RESULT, type Trace, cut, metaFields, said, toHeaders, traceFields, writeJSON,
} from './wire';

const RESERVE = 1024; // bytes left in a message for headers that only some have
const MAX_PIECES = 8192;
const PIECE = 512 * 1024;
const AT_ONCE = 16; // pieces in flight
const PART = 256 * 1024; // bytes at which part of the reply is sent

/** @internal Sends a message; resolves once it has arrived. */
export type Send = (subject: string, headers: MsgHdrs, body: Uint8Array) => Promise<void>;

/** @internal */
export class Reply {
  total = 0;
  errors = 0;
  trace: Trace;
  /** Unix milliseconds. */
  began: number | undefined;
  closed = false;
  readonly #limit: number;
  #slots: string[] = [];
  #bytes = 0; // upper bound for the slots
  #chars = 0;
  #sent: Promise<void>[] = [];
  #large: Promise<void>[] = []; // results with unsent pieces

  constructor(readonly head: Head, readonly service: string, maxPayload: number, readonly send: Send) {
    this.trace = head.trace;
    const fields = [...metaFields(head), ...traceFields(head.trace), ['Tranche-Service', service]];
    const size = fields.reduce((n, pair) => n + Buffer.byteLength(pair.join(': \r\n')), 0);
    this.#limit = Math.min(maxPayload - size - RESERVE, MAX_BODY);
  }

  /**
   * Answers an item. A result too large for a message is sent in pieces; the promise resolves once all are being
   * sent.
   */
  add(ordinal: number, result: unknown): Promise<void> | undefined {
    if (result instanceof Failure) {
      this.fail(ordinal, result);
      return undefined;
    }
    if (result instanceof Binary) return this.#binary(ordinal, result);
    let text;
    try {
      text = writeJSON(result);
    } catch (err) {
      const code = err instanceof Failure ? err.code : 'bad_result';
      this.fail(ordinal, new Failure(code, `the result cannot be written as JSON: ${said(err)}`));
      return undefined;
    }
    if (text.length > MAX_RESULT) {
      this.#tooLarge(ordinal, text.length);
      return undefined;
    }
    if (text.length < this.#limit && this.#slot(`{"i":${ordinal},"d":${text}}`)) return undefined;
    return this.#big(ordinal, 'application/json', Buffer.from(text));
  }

  fail(ordinal: number, failure: Failure): void {
    this.errors++;
    this.#slot(`{"i":${ordinal},"e":${JSON.stringify(failure)}}`);
  }

  #binary(ordinal: number, { data, type }: Binary): Promise<void> | undefined {
    if (!ArrayBuffer.isView(data)) {
      this.fail(ordinal, new Failure('bad_result', 'the data of the Binary is not a Uint8Array'));
      return undefined;
    }
    const of = /^(?=.{3,255}$)[\x21-\x7e][\x20-\x7e]*\/[\x20-\x7e]+$/.test(type) ? type : 'application/octet-stream';
    const bytes = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
    const small = bytes.length < this.#limit
      && this.#slot(`{"i":${ordinal},"t":${JSON.stringify(of)},"b":"${bytes.toString('base64')}"}`);
    return small ? undefined : this.#big(ordinal, of, bytes);
  }

  // Adds a slot unless it fits no message.
  #slot(text: string): boolean {
    let size = 3 * text.length + 1; // upper bound; counting exactly takes time
    if (this.#bytes + size + 32 > this.#limit) size = Buffer.byteLength(text) + 1;
    if (size + 32 > this.#limit) return false;
    if (this.#bytes + size + 32 > this.#limit) this.flush();
    this.#slots.push(text);
    this.#bytes += size;
    this.#chars += text.length;
    this.total++;
    if (this.#chars >= PART) this.flush();
    return true;
  }

  #big(ordinal: number, type: string, data: Buffer): Promise<void> | undefined {
    const size = Math.min(PIECE, this.#limit);
    if (!this.#toNode || data.length > MAX_RESULT || Math.ceil(data.length / size) > MAX_PIECES) {
      this.#tooLarge(ordinal, data.length);
      return undefined;
    }
    this.total++;
    const all = this.#pieces(ordinal, type, data, size);
    this.#large.push(all);
    return all;
  }

  get #toNode(): boolean {
    return this.head.replyTo.startsWith('tranche.reply.');
  }

  #tooLarge(ordinal: number, bytes: number): void {
    const most = this.#toNode ? `${MAX_RESULT} bytes are the most` : `only nodes take more than ${this.#limit}`;
    this.fail(ordinal, new Failure('result_too_large',
      `the result has ${bytes} bytes; ${most}: store it elsewhere and reply with where it is`));
  }

  // Sends few pieces at a time, to bound the memory of those in flight.
  async #pieces(ordinal: number, type: string, data: Buffer, size: number): Promise<void> {
    const count = Math.ceil(data.length / size);
    const hash = createHash('sha256').update(data).digest('hex');
    for (let n = 1; n <= count; n++) {
      const fields: [string, string][] = [['Tranche-Piece', `${ordinal} ${n} ${count} ${data.length} ${hash}`],
        ['Content-Type', type]];
      const sent = this.#post(fields, data.subarray((n - 1) * size, n * size));
      if (n % AT_ONCE === 0) await sent.catch(() => {}); // finish reports errors
      else await breathe(); // let other work proceed
    }
  }

  /** Sends the answers so far without waiting for delivery. */
  flush(): void {
    if (this.#slots.length > 0) this.#publish([], undefined);
  }

  /** Resolves once all messages so far have arrived. */
  async arrived(): Promise<void> {
    await Promise.all(this.#large);
    const failed = (await Promise.allSettled(this.#sent)).find((outcome) => outcome.status === 'rejected');
    if (failed) throw failed.reason;
  }

  /** Sends the final message; resolves once all messages have arrived. */
  async finish(failure?: Failure): Promise<void> {
    await Promise.all(this.#large);
    const error = failure && JSON.stringify(failure);
    if (error && this.#bytes + Buffer.byteLength(error) + 64 > this.#limit) this.flush();
    const fields: [string, string][] = [['Tranche-Final', String(this.total)]];
    if (this.began !== undefined) {
      fields.push(['Tranche-Took', String(Math.max(0, Math.round((now() - this.began) * 1000) / 1000))]);
    }
    if (failure) {
      fields.push(['Nats-Service-Error-Code', failure.code],
        ['Nats-Service-Error', cut(failure.message, 256).replace(/[^\x20-\x7e]/g, ' ') || failure.code]);
    }
    this.#publish(fields, error);
    await this.arrived();
  }

  #publish(fields: [string, string][], error: string | undefined): void {
    const body = Buffer.from(`{"slots":[${this.#slots.join(',')}]${error ? `,"error":${error}` : ''}}`);
    this.#slots = [];
    this.#bytes = 0;
    this.#chars = 0;
    this.#post([['Content-Type', 'application/json'], ...fields], body).catch(() => {}); // arrived reports errors
  }

  #post(fields: [string, string][], body: Uint8Array): Promise<void> {
    const sent = this.send(this.head.replyTo, toHeaders([...metaFields(this.head), ...traceFields(this.trace),
      ['Tranche-Service', this.service], ['Nats-Msg-Id', randomUUID()], ...fields]), body);
    sent.catch(() => {}); // arrived reports errors; avoid an unhandled rejection until then
    this.#sent.push(sent);
    return sent;
  }
}

/** @internal Unix milliseconds, with fractions. */
export function now(): number {
  return performance.timeOrigin + performance.now();
}
