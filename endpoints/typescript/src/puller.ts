// Fetches the messages of a durable consumer and settles each with the consumer that delivered it. Rule numbers refer
// to docs/protocol.md, section Acknowledgement.

import { setTimeout as pause } from 'node:timers/promises';

import { AckPolicy, type ClusterInfo, type ConsumerInfo, type JetStreamManager } from '@nats-io/jetstream';
import { type Msg, type MsgHdrs, type NatsConnection, nanos } from '@nats-io/transport-node';

import { apiCode, isDenied } from './bus';
import { Pull } from './pull';
import { Signal } from './slots';
import { said } from './wire';

const PULL_BYTES = 8 * 1024 * 1024;
/** @internal ms between stop and the end of an open pull, which may just be delivering. */
export const SETTLE = 100;
const KNOWN_FOR = 100;
const ENOUGH = 4; // pull when a quarter of the capacity is free
const MUTE = 4_000; // ms of JetStream's silence before other servers are tried
const STALE = 4e9; // ns without contact after which a leader counts as having lost its followers
const CONSUMER_MISSING = 10014;
const DENIED = 5_000; // ms to wait after a denied permission
const SAY_AGAIN = 60_000; // ms before the same reason to wait is logged again

/** @internal A delivered message until it is settled. */
export interface Delivery {
  readonly subject: string;
  readonly headers: MsgHdrs | undefined;
  readonly data: Uint8Array;
  readonly deliveries: number;
  /** The same for each delivery of a message, and unique to it. */
  readonly id: string;
  /** Whether it is redelivered unless settled. */
  readonly stored: boolean;
  settle(how: string): Promise<void>;
}

/** @internal */
export const nak = (delay: number): string => `-NAK {"delay":${nanos(delay)}}`;

/** @internal The source of a puller's messages. */
export interface Source {
  readonly stream: string;
  readonly name: string;
  readonly filter: string;
  /** Another puller of the endpoint reports what this one would. */
  readonly aside?: boolean;
  /** Limit of messages held. */
  room(): number;
  take(delivery: Delivery): Promise<void>;
  /** Receives the concurrency set by operators, or undefined. */
  obey(concurrency: string | undefined): void;
  log(line: string): void;
  /** Moves the connection to another server if JetStream answers a query there. */
  elsewhere(question: string): Promise<boolean>;
}

/** @internal */
export class Puller {
  state: 'listening' | 'waiting' = 'waiting';
  reason = '';
  rebinds = -1;
  readonly #held = new Map<string, { msg: Msg; made: string }>(); // last delivery of each
  readonly #pulls = new Set<Pull>(); // open, or owed messages
  readonly #changed = new Signal();
  #known: { at: number; made?: Promise<string | undefined> } = { at: -Infinity };
  #beating: NodeJS.Timeout | undefined;

  constructor(readonly source: Source, readonly nc: NatsConnection, readonly jsm: JetStreamManager) {}

  get held(): number {
    return this.#held.size;
  }

  look(): void {
    this.#changed.tell();
  }

  async run(stopping: AbortSignal): Promise<void> {
    const { source } = this;
    stopping.addEventListener('abort', () => this.#changed.tell());
    let asked: number | undefined;
    let told = { reason: '', at: 0 };
    while (!stopping.aborted) {
      try {
        asked ??= Date.now();
        const info = await this.#bind();
        if (!leads(info.cluster)) throw new Stale('the leader has not heard of the other servers');
        asked = undefined;
        this.#beat((info.config.ack_wait ?? nanos(15_000)) / 1e6 / 3);
        this.state = 'listening';
        this.rebinds++;
        told = { reason: '', at: 0 };
        source.log(`listening on ${source.filter}`);
        while (!stopping.aborted) await this.#pull(stopping);
      } catch (err) {
        this.state = 'waiting';
        this.reason = said(err);
        if (!source.aside && (told.reason !== this.reason || Date.now() - told.at > SAY_AGAIN)) {
          told = { reason: this.reason, at: Date.now() };
          source.log(`waiting for stream ${source.stream}: ${this.reason}`);
        }
        if (asked && !source.aside && (err instanceof Stale || Date.now() - asked > MUTE)) {
          if (await source.elsewhere(`$JS.API.CONSUMER.INFO.${source.stream}.${source.name}`)) asked = undefined;
        }
        await pause(source.aside && isDenied(err) ? DENIED : 250, undefined, { signal: stopping }).catch(() => {});
      }
    }
    while (this.#held.size > 0 || [...this.#pulls].some(({ owed }) => owed.messages > 0)) await this.#changed.wait();
    for (const pull of this.#pulls) pull.close();
    clearInterval(this.#beating);
  }

  // Looks up the shared consumer and creates it if missing.
  async #bind(): Promise<ConsumerInfo> {
    const { consumers } = this.jsm;
    const { stream, name, filter } = this.source;
    try {
      return await consumers.info(stream, name);
    } catch (err) {
      if (apiCode(err) !== CONSUMER_MISSING) throw err;
    }
    return consumers.add(stream, {
      durable_name: name, filter_subject: filter, ack_policy: AckPolicy.Explicit,
      ack_wait: nanos(15_000), max_deliver: 20, max_ack_pending: 10_000, max_waiting: 4096,
    });
  }

  // Pulls as many messages as there is capacity for (rule 1), and returns when the server ends the pull; messages may
  // follow. It throws if the consumer must be looked up again.
  async #pull(stopping: AbortSignal): Promise<void> {
    const { stream, name } = this.source;
    const enough = (): number => Math.ceil(this.source.room() / ENOUGH); // not one pull per message
    while (this.#room().messages < enough() && !stopping.aborted) await this.#changed.wait();
    const made = await this.#made(); // before the pull: its messages are of this consumer or an earlier one
    if (!made) throw new Error(`consumer ${name} does not exist`);
    const { messages, bytes } = this.#room();
    if (messages < 1 || stopping.aborted) return;
    const pull = new Pull(this.nc, `$JS.API.CONSUMER.MSG.NEXT.${stream}.${name}`,
      { messages, bytes: Math.max(bytes, (this.nc.info?.max_payload ?? 0) + 4096) },
      (msg) => this.#take(msg, made), () => this.#changed.tell());
    this.#pulls.add(pull);
    void pull.closed.then(() => this.#pulls.delete(pull));
    const stop = (): void => { setTimeout(() => pull.end(), SETTLE); };
    stopping.addEventListener('abort', stop);
    try {
      await pull.over;
    } finally {
      stopping.removeEventListener('abort', stop);
    }
  }

  // The amount to request, less what is held and what ended pulls are owed.
  #room(): { messages: number; bytes: number } {
    const room = { messages: this.source.room() - this.#held.size, bytes: PULL_BYTES };
    for (const { msg } of this.#held.values()) room.bytes -= msg.data.length;
    for (const { owed } of this.#pulls) {
      room.messages -= owed.messages;
      room.bytes -= owed.bytes;
    }
    return room;
  }

  // Records a delivery. If the message is already held, the new delivery is the one to acknowledge. Sequences alone
  // do not identify messages: a recreated stream reuses them (rule 7).
  #take(msg: Msg, made: string): void {
    const [deliveries, sequence, , time] = (msg.reply ?? '').split('.').slice(-5);
    const id = `${sequence}-${time}`;
    const isNew = !this.#held.has(id);
    this.#held.set(id, { msg, made });
    if (!isNew) return;
    const { subject, headers, data } = msg;
    const delivery = {
      subject, headers, data, id, deliveries: Number(deliveries), stored: true,
      settle: (how: string) => this.#settle(id, how),
    };
    this.source.take(delivery)
      .catch((err: unknown) => this.source.log(err instanceof Error ? err.stack ?? err.message : String(err)))
      .finally(() => {
        this.#held.delete(id);
        this.#changed.tell();
      });
  }

  // Answers a delivery, unless its consumer is gone (rule 7).
  async #settle(id: string, how: string): Promise<void> {
    const made = await this.#made();
    const delivery = this.#held.get(id);
    if (made && delivery?.made === made) delivery.msg.respond(how);
  }

  // The consumer's creation time, at most KNOWN_FOR old; undefined if the server does not answer.
  #made(): Promise<string | undefined> {
    if (!this.#known.made || Date.now() - this.#known.at >= KNOWN_FOR) {
      const made = this.jsm.consumers.info(this.source.stream, this.source.name).then((info) => {
        this.source.obey(info.config.metadata?.['tranche-concurrency']);
        return leads(info.cluster) ? info.created : undefined;
      }, () => undefined);
      this.#known = { at: Date.now(), made };
      return made;
    }
    return this.#known.made;
  }

  // Sends heartbeats for held messages (rule 2).
  #beat(interval: number): void {
    clearInterval(this.#beating);
    this.#beating = setInterval(() => {
      if (this.#held.size === 0) return;
      void this.#made().then((made) => {
        for (const delivery of this.#held.values()) if (made && delivery.made === made) delivery.msg.respond('+WPI');
      });
    }, interval);
  }
}

class Stale extends Error {}

/** @internal Whether a consumer's leader has a quorum. */
export function leads(cluster: ClusterInfo | undefined): boolean {
  const others = cluster?.replicas ?? [];
  if (others.length > 0 && !cluster?.leader) return false; // it stopped leading but still answers
  return 2 * (1 + others.filter(({ offline, active }) => !offline && active < STALE).length) > others.length + 1;
}
