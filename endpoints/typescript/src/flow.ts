// Endpoints in stages. Between two stages nothing runs or waits: the chunk is suspended.

import { FlowItem, Stage } from './flowitem';
import { type Found, FlowStore, Missing, type Suspended, failureOf, readSuspended, splitSlice } from './flowstore';
import { FlowWork } from './flowwork';
import { Gathering, type StageReply } from './gather';
import { Endpoint, type EndpointOptions, type Host, Job, type Outcome, readPayload } from './job';
import { type Delivery, SETTLE, nak } from './puller';
import { now } from './reply';
import type { Service } from './service';
import { type Body, Failure, type Head, MAX_STAGES, checkOrigin, readHead, readReply, readStage, said } from './wire';

const REMEMBERED = 4096; // chunks that moved on
const CHANGED = 5; // deliveries left to instances of another version
const MISSING = [250, 1_000, 3_000]; // ms before each retry for a chunk that is not found

export interface FlowOptions<In = unknown> extends EndpointOptions<In> {
  /**
   * Identifies the meaning of the stages. Change it when the next version cannot continue chunks suspended by this
   * one; they then restart. Changing the number of stages has the same effect.
   */
  revision?: string;
}

type Handler<In, Out, State, Shared> = (stage: Stage<In, Out, State, Shared>) => unknown;

/**
 * Serves an endpoint in stages, which read like one function. A stage may query other endpoints for each item with a
 * target; the next stage starts, on any instance, when all answers have arrived. An item whose question failed is
 * answered with that error, unless the target keeps errors. A stage may run more than once, so its questions must
 * depend only on the items and their states.
 */
export function handleFlow<In = unknown, Out = unknown, State = unknown, Shared = unknown>(
  service: Service, endpoint: string, stages: Handler<In, Out, State, Shared>[], options: FlowOptions<In> = {},
): void {
  service.register(new FlowEndpoint(service.host, endpoint, stages as Handler<unknown, unknown, unknown, unknown>[],
    options as FlowOptions<never>));
}

/** @internal */
export class FlowEndpoint extends Endpoint {
  readonly store: FlowStore;
  readonly revision: string;
  readonly #running = new Set<string>();
  readonly #done = new Set<string>();
  readonly #turns = new Map<string, Promise<unknown>>();

  constructor(
    host: Host, name: string, readonly stages: Handler<unknown, unknown, unknown, unknown>[], options: FlowOptions<never>,
  ) {
    super(host, name, options, 2);
    if (stages.length < 1 || stages.length > MAX_STAGES) throw new TypeError(`flow ${name} has ${stages.length} stages`);
    this.revision = options.revision ?? '';
    if (!/^[\x21-\x7e]{0,64}$/.test(this.revision)) throw new TypeError(`flow ${name}: revision "${this.revision}"`);
    this.store = new FlowStore(host.bus, name, this.options.timeout);
  }

  room(): number {
    return 2 * this.slots.size;
  }

  override status(): Record<string, number | boolean> {
    return { ...super.status(), stages: this.stages.length };
  }

  protected work(job: Job, body: Body): Promise<Outcome> {
    const work = new FlowWork(this, job, 0, body.items.length);
    for (const raw of body.items) {
      const item = new FlowItem(work, raw.i, raw.k, raw.p);
      const take = (input: unknown): void => { (item as { in: unknown }).in = input; };
      if (readPayload(this, item, raw.d, take)) work.items.push(item);
    }
    return work.advance();
  }

  /** Handles one reply to the flow's questions. */
  async deal(delivery: Delivery): Promise<void> {
    let to;
    let reply: StageReply;
    let id: string;
    try {
      to = readStage(delivery.subject);
      if (to.flow !== this.name) throw new Error(`subject "${delivery.subject}" leads to another flow`);
      checkOrigin(delivery.headers);
      const message = readReply(delivery.headers, delivery.data);
      let request;
      ({ id, request } = splitSlice(delivery.headers?.get('Tranche-Slice') ?? ''));
      if (request !== to.request) throw new Error(`it is of request ${request}, and its subject of request ${to.request}`);
      reply = { request, message };
    } catch (err) {
      return this.#refuse(delivery, said(err));
    }
    try {
      await this.#take(delivery, id, to, reply);
    } catch (err) {
      const rest = MISSING[delivery.deliveries - 1];
      if (err instanceof Missing && err.what !== 'gone' && rest !== undefined) return delivery.settle(nak(rest));
      if (err instanceof Missing && err.what !== 'torn') return delivery.settle('+ACK'); // the chunk has moved on
      this.host.log(`${this.name}: a reply could not be taken: ${said(err)}`);
      await delivery.settle(nak(2_000));
    }
  }

  async #refuse(delivery: Delivery, why: string): Promise<void> {
    this.host.log(`${this.name}: a reply to a flow is refused: ${why}`);
    await delivery.settle(`+TERM ${why.replace(/[^\x20-\x7e]/g, ' ').slice(0, 200)}`);
  }

  async #take(delivery: Delivery, id: string, to: ReturnType<typeof readStage>, reply: StageReply): Promise<void> {
    if (this.#done.has(id)) throw new Missing('gone', `chunk ${id} has continued`);
    const found = await this.store.read(id);
    const head = readHead(found.headers, this.name);
    let from: Suspended;
    try {
      from = readSuspended(found.body);
      if (from.stages !== this.stages.length || (from.revision ?? '') !== this.revision) {
        throw new Error(`the chunk was suspended by a flow of ${from.stages} stages, revision "${from.revision ?? ''}"; this one `
          + `has ${this.stages.length}, revision "${this.revision}"`);
      }
    } catch (err) {
      if (delivery.deliveries <= CHANGED) return delivery.settle(nak(1_000)); // for instances of that version
      return this.#giveUp(delivery, id, found, head, new Failure('flow_changed', said(err), true));
    }
    const asked = from.requests[to.request];
    if (to.stage !== from.stage || asked?.endpoint !== to.callee) {
      return this.#refuse(delivery, `${delivery.subject} is not waited for`);
    }
    if (delivery.deliveries > head.deliveries) {
      return this.#giveUp(delivery, id, found, head, new Failure('too_many_deliveries',
        `stage ${from.stage} of flow ${this.name} was begun many times and never ended`, true));
    }
    const gathering = new Gathering(this.store, id, from);
    const replies = await this.#inTurn(id, () => gathering.take(reply, delivery));
    if (!replies || this.#running.has(id) || this.#done.has(id)) return delivery.settle('+ACK');
    this.#running.add(id);
    try {
      if (await this.#continue(delivery, id, found, head, from, replies, gathering.parts)) this.#remember(id);
    } finally {
      this.#running.delete(id);
    }
  }

  // Serializes the messages of one chunk within an instance.
  #inTurn<T>(id: string, work: () => Promise<T>): Promise<T> {
    const mine = (this.#turns.get(id) ?? Promise.resolve()).then(work, work);
    const settled = mine.catch(() => {}).finally(() => {
      if (this.#turns.get(id) === settled) this.#turns.delete(id);
    });
    this.#turns.set(id, settled);
    return mine;
  }

  #remember(id: string): void {
    this.#done.add(id);
    if (this.#done.size > REMEMBERED) for (const first of this.#done) { this.#done.delete(first); break; }
  }

  #job(found: Found, head: Head, params: Record<string, string>): Job {
    const reply = this.newReply(head);
    reply.total = Number(found.headers.get('Tranche-Flow-Answered')) || 0;
    reply.began = Number(found.headers.get('Tranche-Flow-Begun')) || now();
    return new Job(this, head, params, reply, true);
  }

  // Runs the stage; false if the message will be redelivered.
  async #continue(
    delivery: Delivery, id: string, found: Found, head: Head, from: Suspended, replies: StageReply[], parts: Set<string>,
  ): Promise<boolean> {
    const started = now();
    const job = this.#job(found, head, from.params ?? {});
    const work = new FlowWork(this, job, from.stage, from.total, failureOf(from.failure), from.shared);
    for (const { i, k, s } of from.items) {
      const item = new FlowItem(work, i, k);
      item.state = s;
      work.items.push(item);
    }
    work.merge(from, replies);
    const outcome = await work.advance();
    const idle = job.reply.total === from.answered && outcome.failure?.code === 'shutdown' && !from.failure;
    if (!outcome.begun || idle) {
      await delivery.settle(nak(2 * SETTLE)); // nothing was done: another instance may take it
      return false;
    }
    // Everything derived from the state is acknowledged before the state is removed, and then the message.
    const clear = { ...delivery, settle: async (how: string) => {
      if (how === '+ACK') this.store.remove(id, [...Array(found.parts).keys(), ...parts]);
      await delivery.settle(how);
    } };
    return this.end(clear, job, outcome, from.total, from.items.length, started);
  }

  async #giveUp(delivery: Delivery, id: string, found: Found, head: Head, failure: Failure): Promise<void> {
    const { reply } = this.#job(found, head, {});
    if (await this.settle(delivery, reply, failure, '+ACK')) {
      this.store.remove(id, Array(found.parts).keys());
      this.#remember(id);
    }
  }
}
