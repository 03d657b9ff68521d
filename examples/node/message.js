'use strict';

// The messages of docs/protocol.md: how a request is read and a reply written. Nothing here talks to a server.

const { Decompress } = require('fzstd');
const { headers } = require('nats');
const { createHash, randomUUID } = require('node:crypto');

const MAX_BODY = 16 * 1024 * 1024; // of a body, decompressed
const MAX_ITEMS = 8192;
const RESERVE = 1024; // of a message, for the headers that only some have
const MAX_RESULT = 64 * 1024 * 1024; // of one that goes in pieces
const PIECE = 512 * 1024;
const AT_ONCE = 16; // pieces under way
const REPEATED = ['Tranche-Version', 'Tranche-Run', 'Tranche-Slice', 'Tranche-Step', 'Tranche-Attempt',
  'Tranche-Generation', 'Tranche-Mode'];
const DEFAULT_DELIVERIES = 5;

// Failure is an error with a code. Thrown by a handler it speaks for every item of the chunk without an answer.
class Failure extends Error {
  constructor(code, message, retry = false) {
    super(message);
    this.code = code;
    this.retry = retry;
  }

  toJSON() {
    return { code: this.code, message: cut(this.message, 2048), retry: this.retry };
  }
}

// Foreign is thrown for a request of another version of the protocol.
class Foreign extends Error {}

// readHead reads the headers of a request, and throws when they cannot be.
function readHead(head, endpoint) {
  const get = (name) => (head ? head.get(name) : '');
  const need = (name, form) => {
    if (!form.test(get(name))) throw new Error(`${name} is "${get(name).slice(0, 60)}"`);
    return get(name);
  };
  if (get('Tranche-Version') !== '1') {
    need('Tranche-Version', /./);
    throw new Foreign(`Tranche-Version is ${get('Tranche-Version').slice(0, 60)}; this service speaks 1`);
  }
  const uuid = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;
  const number = /^\d{1,10}$/;
  const positive = /^0*[1-9]\d{0,9}$/;
  need('Tranche-Mode', /^(batch|single)?$/);
  const repeated = REPEATED.filter((name) => get(name) !== '').map((name) => [name, get(name)]);
  if (get('traceparent')) repeated.push(['traceparent', get('traceparent')]);
  return {
    repeated,
    run: need('Tranche-Run', uuid),
    slice: need('Tranche-Slice', uuid),
    step: Number(need('Tranche-Step', number)),
    attempt: Number(need('Tranche-Attempt', positive)),
    generation: Number(need('Tranche-Generation', positive)),
    deliveries: get('Tranche-Deliveries') ? Number(need('Tranche-Deliveries', positive)) : DEFAULT_DELIVERIES,
    encoding: get('Content-Encoding'),
    replyTo: readReplyTo(get('Tranche-Reply-To'), endpoint),
  };
}

// readReplyTo returns where the reply goes. Its last token is the endpoint that may reply there.
function readReplyTo(subject, endpoint) {
  if (subject === '') return `tranche.reply.${endpoint}`;
  const word = '[A-Za-z0-9_-]+';
  const forms = new RegExp(`^tranche\\.(stage\\.${word}\\.[1-9]\\d*\\.\\d+|call\\.${word}\\.${word})\\.(${word})$`);
  const match = forms.exec(subject);
  if (!match || match[2] !== endpoint) throw new Error(`Tranche-Reply-To is "${subject.slice(0, 100)}"`);
  return subject;
}

// readBody returns the items and parameters of a request, and throws a Failure when they cannot be read.
function readBody(head, data) {
  try {
    const body = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(decode(head.encoding, data)));
    const items = body.items.map(({ i, k, d, p }) => {
      const carries = d !== undefined || p !== undefined;
      if (!Number.isInteger(i) || i < 0 || i > 2 ** 31 - 1 || typeof k !== 'string' || !carries) {
        throw new Error(`the item with "i" ${JSON.stringify(i)} must have "i", "k", and "d" or "p"`);
      }
      return { ordinal: i, key: k, payload: d, parts: readParts(p ?? {}) };
    });
    if (items.length < 1 || items.length > MAX_ITEMS) throw new Error(`there are ${items.length} items`);
    return { items, params: body.params ?? {} };
  } catch (err) {
    throw new Failure('bad_request', `the request cannot be read: ${err.message}`);
  }
}

// readParts returns what other steps have made of an item, by their names: { data } with any JSON, or { type, data } with
// bytes.
function readParts(p) {
  return new Map(Object.entries(p).map(([name, { d, t, b }]) => {
    if ((d === undefined) === (b === undefined)) throw new Error(`part "${name}" must have exactly one of "d" and "b"`);
    if (b === undefined) return [name, { data: d }];
    return [name, { type: t ?? 'application/octet-stream', data: Buffer.from(b, 'base64') }];
  }));
}

function decode(encoding, data) {
  if (encoding === '' || encoding === 'identity') return data;
  if (encoding !== 'zstd') throw new Error(`Content-Encoding is "${encoding.slice(0, 40)}"`);
  const parts = [];
  let size = 0;
  const stream = new Decompress((part) => {
    size += part.length;
    if (size > MAX_BODY) throw new Error(`the body decompresses to more than ${MAX_BODY} bytes`);
    parts.push(part);
  });
  stream.push(data, true);
  return Buffer.concat(parts);
}

// Reply puts slots into as few messages as fit and hands each, as (subject, headers, body), to send.
class Reply {
  constructor(head, service, maxPayload, send) {
    this.head = head;
    this.service = service;
    this.send = send;
    const fields = [...head.repeated, ['Tranche-Service', service]];
    const size = fields.reduce((n, pair) => n + pair.join(': \r\n').length, 0);
    this.limit = Math.min(maxPayload - size - RESERVE, MAX_BODY);
    this.slots = [];
    this.bytes = 0;
    this.total = 0;
    this.errors = 0;
    this.sent = [];
    this.large = []; // results whose pieces are not all on their way
  }

  // add takes the members of a slot beside "i"; b may be a Buffer. A result that does not fit a message goes in pieces: a
  // promise says then when all of them are on their way.
  add(ordinal, members) {
    const { b, t, d } = members;
    const big = b !== undefined && b.length > this.limit;
    const text = b === undefined ? members : { t, b: big ? '' : b.toString('base64') };
    let slot = Buffer.from(JSON.stringify({ i: ordinal, ...text }));
    if (big || slot.length + 16 > this.limit) {
      const data = b ?? Buffer.from(JSON.stringify(d));
      if (this.head.replyTo.startsWith('tranche.reply.') && data.length <= MAX_RESULT) {
        this.total++;
        const all = this.pieces(ordinal, b ? (t ?? 'application/octet-stream') : 'application/json', data);
        this.large.push(all);
        return all;
      }
      const most = `${MAX_RESULT} bytes are the most, and ${this.limit} for who is no node`;
      members = { e: new Failure('result_too_large', `the result has ${data.length} bytes; ${most}`) };
      slot = Buffer.from(JSON.stringify({ i: ordinal, ...members }));
    }
    if (this.bytes + slot.length + 16 > this.limit) this.flush();
    this.slots.push(slot);
    this.bytes += slot.length + 1;
    this.total++;
    if (members.e) this.errors++;
    return undefined;
  }

  // pieces sends a result in pieces, a few at a time: what is under way is not held twice.
  async pieces(ordinal, type, data) {
    const size = Math.min(PIECE, this.limit);
    const count = Math.ceil(data.length / size);
    const hash = createHash('sha256').update(data).digest('hex');
    for (let n = 1; n <= count; n++) {
      const fields = { 'Tranche-Piece': `${ordinal} ${n} ${count} ${data.length} ${hash}`, 'Content-Type': type };
      const sent = this.post(fields, data.subarray((n - 1) * size, n * size));
      if (n % AT_ONCE === 0) await sent.catch(() => {}); // finish looks at it
    }
  }

  // flush sends what there is, without waiting for it to arrive.
  flush() {
    if (this.slots.length > 0) this.publish({});
  }

  // begin notes that the work on the chunk begins.
  begin() {
    this.began = process.hrtime.bigint();
  }

  // finish sends the final message, and returns when all messages have arrived.
  async finish(failure) {
    await Promise.all(this.large);
    const error = failure && JSON.stringify(failure);
    if (error && this.bytes + error.length + 32 > this.limit) this.flush();
    const fields = { 'Tranche-Final': String(this.total) };
    if (this.began) fields['Tranche-Took'] = String(Number((process.hrtime.bigint() - this.began) / 1000n) / 1000);
    if (failure) {
      fields['Nats-Service-Error-Code'] = failure.code;
      fields['Nats-Service-Error'] = cut(failure.message, 256).replace(/[^\x20-\x7e]/g, ' ');
    }
    this.publish(fields, error);
    const failed = (await Promise.allSettled(this.sent)).find((outcome) => outcome.status === 'rejected');
    if (failed) throw failed.reason;
  }

  publish(fields, error) {
    const parts = this.slots.flatMap((slot, n) => (n ? [Buffer.from(','), slot] : [slot]));
    const body = [Buffer.from('{"slots":['), ...parts, Buffer.from(error ? `],"error":${error}}` : ']}')];
    this.slots = [];
    this.bytes = 0;
    this.post(fields, Buffer.concat(body));
  }

  post(fields, body) {
    const h = headers();
    const all = [...this.head.repeated, ['Tranche-Service', this.service], ['Content-Type', 'application/json'],
      ['Nats-Msg-Id', randomUUID()], ...Object.entries(fields)];
    for (const [name, value] of all) h.set(name, value);
    const sent = this.send(this.head.replyTo, h, body);
    sent.catch(() => {}); // finish looks at it; until then it is not an error that nobody sees to
    this.sent.push(sent);
    return sent;
  }
}

// cut returns at most so many bytes of a string, without half a character at the end.
function cut(text, bytes) {
  const all = Buffer.from(text);
  return all.length <= bytes ? text : all.subarray(0, bytes).toString().replace(/\uFFFD+$/, '');
}

module.exports = { Failure, Foreign, Reply, readBody, readHead };
