// Collects the replies to a suspended chunk's requests. The head lists the messages received. It is updated by
// compare-and-set, so of two instances that receive the last two messages, exactly one sees both.

import { setTimeout as pause } from 'node:timers/promises';

import type { FlowStore, Suspended } from './flowstore';
import { Missing } from './flowstore';
import type { Delivery } from './puller';
import { type ReplyMessage, readReply } from './wire';

const CONFLICTS = 64;
const PARKED = ['Tranche-Version', 'Tranche-Run', 'Tranche-Slice', 'Tranche-Step', 'Tranche-Attempt', 'Tranche-Generation',
  'Tranche-Mode', 'Tranche-Final', 'Tranche-Service', 'Nats-Service-Error-Code', 'Nats-Service-Error', 'Content-Encoding',
  'Content-Type'];

/** @internal One message of the reply to a request. */
export interface StageReply {
  readonly request: number;
  readonly message: ReplyMessage;
}

interface Part {
  n: string; // where it is parked
  r: number; // request
  i: number[]; // ordinals that it was the first to answer
  f?: boolean; // final
  a?: number; // if final: number of slots in the whole reply
  w?: boolean; // this message alone holds them all
}

interface Head {
  parts: Part[];
  done?: string; // the part that completed the replies; its receiver runs the stage
}

/** @internal */
export class Gathering {
  /** Parts in the stream besides the state. */
  readonly parts = new Set<string>();
  readonly #asked: number[]; // number of items waiting for each request

  constructor(readonly store: FlowStore, readonly id: string, readonly from: Suspended) {
    this.#asked = from.requests.map(() => 0);
    for (const { r } of from.items) for (const n of r ?? []) this.#asked[n]!++;
  }

  /**
   * Handles one reply message. It returns all messages if they are complete and this one must run the stage;
   * otherwise the message only needs an acknowledgement.
   */
  async take(reply: StageReply, delivery: Delivery): Promise<StageReply[] | undefined> {
    const part = this.#part(`p${delivery.id}`, reply);
    if (this.from.requests.length === 1 && this.#ends(part, part.i.length)) return [reply];
    for (let n = 0; n < CONFLICTS; n++) {
      const noted = await this.#note(part, delivery);
      if (noted === 'none') return undefined;
      if (noted !== 'conflict') return this.#collect(noted, reply);
      await pause(1 + Math.random() * 2 ** Math.min(n, 6));
    }
    throw new Error(`gather replies for ${this.id}: others were ahead ${CONFLICTS} times`);
  }

  async #note(part: Part, delivery: Delivery): Promise<Head | 'none' | 'conflict'> {
    const subject = this.store.subject(this.id, 'head');
    const { head, sequence } = await this.#head(subject);
    if (head.parts.some(({ n }) => n === part.n)) return head.done === part.n ? head : 'none'; // redelivered
    const others = head.parts.filter(({ r }) => r === part.r);
    const known = new Set(others.flatMap(({ i }) => i));
    const added = { ...part, i: part.i.filter((ordinal) => !known.has(ordinal)) };
    if (head.done || (added.i.length === 0 && (!added.f || others.some(({ f }) => f)))) return 'none';
    head.parts.push(added);
    if (this.#complete(head)) head.done = part.n;
    else await this.#park(part.n, delivery);
    if (!(await this.store.replace(subject, sequence, Buffer.from(JSON.stringify(head))))) return 'conflict';
    return head.done ? head : 'none';
  }

  #part(n: string, { request, message }: StageReply): Part {
    const waits = new Set(this.from.items.filter(({ r }) => r?.includes(request)).map(({ i }) => i));
    const i = [...new Set(message.slots.map((slot) => slot.i))].filter((ordinal) => waits.has(ordinal));
    if (message.final === undefined) return { n, r: request, i };
    return { n, r: request, i, f: true, a: message.final, w: message.slots.length >= message.final };
  }

  // Whether part completes its request's reply: it is final, or all items are answered.
  #ends(part: Part, answered: number): boolean {
    return answered >= this.#asked[part.r]! || (part.f === true && (part.w === true || answered >= (part.a ?? 0)));
  }

  #complete(head: Head): boolean {
    return this.from.requests.every((_, r) => {
      const parts = head.parts.filter((part) => part.r === r);
      const answered = parts.reduce((n, { i }) => n + i.length, 0);
      return parts.some((part) => this.#ends(part, answered));
    });
  }

  async #head(subject: string): Promise<{ head: Head; sequence: number }> {
    try {
      const { data, sequence } = await this.store.get(subject);
      return { head: JSON.parse(Buffer.from(data).toString()) as Head, sequence };
    } catch (err) {
      if (err instanceof Missing && err.what === 'absent') return { head: { parts: [] }, sequence: 0 };
      throw err;
    }
  }

  async #park(name: string, { headers, data }: Delivery): Promise<void> {
    if (this.parts.has(name)) return;
    const fields = PARKED.filter((header) => headers?.has(header))
      .map((header): [string, string] => [header, headers!.get(header)]);
    await this.store.store(this.store.subject(this.id, name), fields, data);
    this.parts.add(name);
  }

  async #collect(head: Head, last: StageReply): Promise<StageReply[]> {
    this.parts.add('head');
    const all: StageReply[] = [];
    for (const { n, r } of head.parts) {
      if (n === head.done) {
        all.push(last);
        continue;
      }
      const { headers, data } = await this.store.parked(this.id, n);
      all.push({ request: r, message: readReply(headers, data) });
      this.parts.add(n);
    }
    return all;
  }
}
