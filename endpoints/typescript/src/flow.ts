// Endpoints in stages. Between two stages nothing runs and nobody waits: the chunk is suspended.

import { FULL, apiCode } from './bus';
import {
  type Found, FlowStore, MAX_STATE, Missing, type Suspended, failureOf, flowID, readSuspended, sliceOf, splitSlice,
} from './flowstore';
import { Gathering, type StageReply } from './gather';
import { BaseItem, Endpoint, type EndpointOptions, type Host, Job, type Outcome, readPayload } from './job';
import { type Delivery, SETTLE, nak } from './puller';
import { now } from './reply';
import type { Service } from './service';
import {
  Binary, type Body, Failure, type Head, MAX_BODY, MAX_ITEMS, MAX_STACK, MAX_STAGES, type Meta, type RawItem, type Slot,
  checkName, checkOrigin, depth, metaFields, readHead, readReply, readStage, said, slotValue, toHeaders, traceFields, writeJSON,
} from './wire';

const RESERVE = 1024;
const PUBLISHERS = 8; // requests of a stage that are on their way at once
const REMEMBERED = 4096; // chunks that went on
const CHANGED = 5; // so often a chunk of another version is left to other instances
const MISSING = [250, 1_000, 3_000]; // ms; so long a reply rests whose chunk cannot be found

export interface FlowOptions<In = unknown> extends EndpointOptions<In> {
  /**
   * Names what the stages mean. Change it when a chunk that one version has suspended cannot be continued by the next: such
   * chunks are begun again. Another number of stages counts by itself.
   */
  revision?: string;
}

/** An item in a stage of a flow: answer it, ask for it, send it on, or leave it out; then it will be tried again. */
export class FlowItem<In = unknown, Out = unknown, State = unknown> extends BaseItem {
  /** The payload, in the first stage only. */
  readonly in!: In;
  /** Kept from stage to stage, as JSON. */
  state: State | undefined;
  /** @internal */ readonly asks = new Map<string, Ask>();
  /** @internal */ answers = new Map<string, Slot>();
  /** @internal */ waits: number[] = [];
  /** @internal */ goesOn = false;
  readonly #work: FlowWork;

  /** @internal */
  constructor(work: FlowWork, ordinal: number, key: string, parts?: RawItem['p']) {
    super(work.job, ordinal, key, parts);
    this.#work = work;
  }

  /** Answers with a result, and ends the item's way. What it has asked for in this stage is not asked. */
  reply(result: Out | Binary): void {
    void this.answer(result);
  }

  /** Answers with an error that trying again would not help. */
  fail(code: string, message: string): void {
    void this.answer(new Failure(code, message));
  }

  /** Answers with an error that may pass. */
  retry(code: string, message: string): void {
    void this.answer(new Failure(code, message, true));
  }

  /** Goes on to the next stage without asking for anything. */
  next(): void {
    if (this.#open()) this.goesOn = true;
  }

  /** @internal */
  ask(target: { endpoint: string; name: string; keep: boolean }, query: unknown): void {
    if (!this.#open() || !this.#work.deepEnough(this)) return;
    const before = this.asks.get(target.name);
    if (before) {
      if (before.endpoint !== target.endpoint) {
        this.fail('bad_query', `the item asks both endpoint ${before.endpoint} and endpoint ${target.endpoint} under the name `
          + `${target.name}; give one another name, by as`);
      }
      return; // the first question stands
    }
    try {
      this.asks.set(target.name, { ...target, query: writeJSON(query) });
    } catch (err) {
      this.fail('bad_query', `the question to ${target.name} cannot be written: ${said(err)}`);
    }
  }

  /** @internal Goes on to the next stage. */
  get moves(): boolean {
    return !this.answered && (this.goesOn || this.asks.size > 0);
  }

  #open(): boolean {
    if (this.answered || this.#work.job.closed) return false;
    if (!this.#work.last) return true;
    this.fail('no_next_stage', `stage ${this.#work.stage} is the last one, and the item asks or goes on in it`);
    return false;
  }
}

interface Ask {
  readonly endpoint: string;
  readonly name: string;
  readonly keep: boolean;
  readonly query: string;
}

/** The items of a chunk that have come to a stage. */
export class Stage<In = unknown, Out = unknown, State = unknown, Shared = unknown> {
  readonly meta: Meta;
  readonly params: Readonly<Record<string, string>>;
  /** Which stage this is, from 0. */
  readonly number: number;
  readonly #work: FlowWork;

  /** @internal */
  constructor(work: FlowWork, readonly items: FlowItem<In, Out, State>[], readonly signal: AbortSignal) {
    this.#work = work;
    this.meta = work.job.head;
    this.params = work.job.params;
    this.number = work.stage;
  }

  /** Kept with the chunk from stage to stage, as JSON. */
  get shared(): Shared | undefined {
    return this.#work.shared as Shared | undefined;
  }

  set shared(value: Shared | undefined) {
    this.#work.shared = value;
  }

  keys(): string[] {
    return this.items.map(({ key }) => key);
  }

  /** Sends what has been answered so far. */
  flush(): void {
    if (!this.#work.job.closed) this.#work.job.reply.flush();
  }
}

/** An endpoint that flows ask, with a Query for an item, to be answered with an Answer in the next stage. */
export class Target<Query = unknown, Answer = unknown> {
  /** @internal */
  constructor(readonly endpoint: string, readonly name: string, readonly keep: boolean) {
    checkName(endpoint);
    checkName(name);
  }

  /** The same endpoint under another name, so that one stage can ask it two things. */
  as(name: string): Target<Query, Answer> {
    return new Target(this.endpoint, name, this.keep);
  }

  /** A target whose errors do not fail the item: the next stage sees the item, and `error` tells. */
  keepErrors(): Target<Query, Answer> {
    return new Target(this.endpoint, this.name, true);
  }

  /** Asks for an item. The request goes out when the stage has ended. */
  ask(item: FlowItem, query: Query): void {
    item.ask(this, query);
  }

  /** Whether the stage before has asked for the item. */
  asked(item: FlowItem): boolean {
    return item.answers.has(this.name);
  }

  /** The answer; undefined when nothing was asked, or error tells why there is none. It is there in the next stage only. */
  answer(item: FlowItem): Answer | undefined {
    const slot = item.answers.get(this.name);
    return slot && !slot.e ? slotValue(slot) as Answer : undefined;
  }

  /** The error that answers the item; only with keepErrors. */
  error(item: FlowItem): Failure | undefined {
    const slot = item.answers.get(this.name);
    return slot?.e && slotValue(slot) as Failure;
  }
}

/** The target of an endpoint. */
export function target<Query = unknown, Answer = unknown>(endpoint: string): Target<Query, Answer> {
  return new Target(endpoint, endpoint, false);
}

type Handler<In, Out, State, Shared> = (stage: Stage<In, Out, State, Shared>) => unknown;

/**
 * Serves an endpoint in stages, which read from top to bottom like one function. A stage asks other endpoints, item by
 * item, by a target; the next begins when all have answered, on any instance. An item whose question came back as an error
 * is answered with it, unless the target keeps errors. A stage may run more than once: what it asks should follow from the
 * items and their states alone.
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

  override status(): Record<string, number> {
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

  /** Takes a reply to what the flow has asked all the way. */
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
      if (err instanceof Missing && err.what !== 'torn') return delivery.settle('+ACK'); // stale: the chunk has gone on
      this.host.log(`${this.name}: a reply could not be taken: ${said(err)}`);
      await delivery.settle(nak(2_000));
    }
  }

  async #refuse(delivery: Delivery, why: string): Promise<void> {
    this.host.log(`${this.name}: a reply to a flow is refused: ${why}`);
    await delivery.settle(`+TERM ${why.replace(/[^\x20-\x7e]/g, ' ').slice(0, 200)}`);
  }

  async #take(delivery: Delivery, id: string, to: ReturnType<typeof readStage>, reply: StageReply): Promise<void> {
    if (this.#done.has(id)) throw new Missing('gone', `chunk ${id} has gone on`);
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

  // Messages for one chunk are noted one after the other within an instance.
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
    return new Job(this, head, params, reply);
  }

  // Runs the stage; false when the message comes again.
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
      await delivery.settle(nak(2 * SETTLE)); // nothing was done: another instance can have it
      return false;
    }
    // All that follows from this state is acknowledged before it is removed, and then the message.
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

interface Question {
  readonly request: Suspended['requests'][number];
  readonly items: FlowItem[];
  readonly fields: [string, string][];
  readonly body: Buffer;
}

/** @internal Takes a chunk through as many stages as need no answer from elsewhere. */
export class FlowWork {
  items: FlowItem[] = [];

  constructor(
    readonly flow: FlowEndpoint, readonly job: Job, public stage: number, readonly total: number,
    public failure?: Failure | undefined, public shared?: unknown,
  ) {}

  get last(): boolean {
    return this.stage + 1 >= this.flow.stages.length;
  }

  deepEnough(item: FlowItem): boolean {
    const { stack } = this.job.head;
    if (depth(stack) < MAX_STACK) return true;
    item.fail('stack_too_deep', `${MAX_STACK} endpoints wait for one another already; is there a circle? ${stack}`);
    return false;
  }

  async advance(): Promise<Outcome> {
    const { flow, job } = this;
    if (!(await flow.slots.take(job.urgent, false))) return { begun: false };
    try {
      job.reply.began ??= now();
      while (this.items.length > 0) {
        const failure = await job.run(this.stage, () => this.items.map(({ key }) => key),
          (signal) => flow.stages[this.stage]!(new Stage(this, this.items, signal)));
        if (failure) {
          this.failure ??= failure;
          break;
        }
        job.closed = true; // what a handler says now is lost
        const questions = this.#questions();
        if (questions.length > 0) return this.#suspend(questions);
        this.#moveOn();
        job.closed = false;
      }
      return { begun: true, failure: this.failure };
    } catch (err) {
      if (!(err instanceof Failure)) throw err;
      return { begun: true, failure: this.failure ?? err };
    } finally {
      flow.slots.give();
    }
  }

  #moveOn(): void {
    this.stage++;
    this.items = this.items.filter((item) => item.moves).map((before) => {
      const item = new FlowItem(this, before.ordinal, before.key);
      item.state = before.state;
      return item;
    });
  }

  // Writes the requests for what the stage has asked. A stage that is repeated may ask in another order, and must still
  // make the same requests.
  #questions(): Question[] {
    const groups = new Map<string, { ask: Ask; items: FlowItem[] }>();
    for (const item of this.items) {
      if (item.answered) continue;
      for (const ask of item.asks.values()) {
        const name = `${ask.name} ${ask.endpoint} ${ask.keep}`;
        const group = groups.get(name) ?? { ask, items: [] };
        groups.set(name, group);
        group.items.push(item);
      }
    }
    const made: Question[] = [];
    for (const name of [...groups.keys()].sort()) {
      const { ask, items } = groups.get(name)!;
      this.#ask(ask, items, made);
    }
    return made;
  }

  #ask(ask: Ask, items: FlowItem[], made: Question[]): void {
    const { flow } = this;
    const { params } = this.job;
    const names = Object.keys(params).sort();
    const start = names.length === 0 ? '{"items":[' : `{"params":${JSON.stringify(params, names)},"items":[`;
    const fields = this.#fields(ask, made.length);
    const size = fields.reduce((n, pair) => n + Buffer.byteLength(pair.join(': \r\n')), 0);
    const limit = Math.min(flow.host.bus.maxPayload - size - RESERVE, MAX_BODY) - start.length * 3;
    let texts: string[] = [];
    let group: FlowItem[] = [];
    let bytes = 0;
    const close = (): void => {
      if (group.length === 0) return;
      if (made.length === MAX_ITEMS) {
        throw new Failure('query_too_large', `stage ${this.stage} would make more than ${MAX_ITEMS} requests for one chunk`);
      }
      const { name, endpoint, keep } = ask;
      for (const item of group) item.waits.push(made.length);
      made.push({
        request: { target: name, endpoint, ...(keep && { keep }) }, items: group, fields: this.#fields(ask, made.length),
        body: Buffer.from(`${start}${texts.join(',')}]}`),
      });
      [texts, group, bytes] = [[], [], 0];
    };
    for (const item of items) {
      const { query } = item.asks.get(ask.name)!;
      const text = `{"i":${item.ordinal},"k":${JSON.stringify(item.key)},"d":${query}}`;
      const more = Buffer.byteLength(text) + 1;
      if (more > limit) {
        item.giveUp(new Failure('query_too_large', `the question to ${ask.name} takes ${query.length} bytes, which does not fit a `
          + 'message; ask with where the data is'));
        continue;
      }
      if (bytes + more > limit || group.length === MAX_ITEMS) close();
      texts.push(text);
      group.push(item);
      bytes += more;
    }
    close();
  }

  #fields(ask: Ask, request: number): [string, string][] {
    const { head, reply } = this.job;
    const { flow } = this;
    const next = this.stage + 1;
    const slice = sliceOf(flowID(head, flow.name, this.stage), request);
    const frame = `${flow.name}:${next}${ask.name === ask.endpoint ? '' : `:${ask.name}`}`;
    const fields: [string, string][] = [
      ...metaFields({ ...head, slice }), ...traceFields(reply.trace),
      ['Tranche-Reply-To', `tranche.stage.${flow.name}.${next}.${request}.${ask.endpoint}`],
      ['Tranche-Stack', head.stack ? `${head.stack},${frame}` : frame], ['Tranche-Root', head.root],
      ['Tranche-Deliveries', String(head.deliveries)], ['Nats-Msg-Id', slice], ['Nats-TTL', flow.store.ttl],
    ];
    if (head.origin) fields.push(['Tranche-Origin', head.origin]);
    return fields;
  }

  // Leaves the chunk in the stream and sends the requests that it waits for. The message that brought us here is
  // acknowledged after that, so a crash at any point repeats the stage, under the same ids.
  #suspend(questions: Question[]): Outcome {
    const { flow, job, stage } = this;
    const { head, reply } = job;
    const going = this.items.filter((item) => item.moves);
    const params = job.params;
    let body: Buffer;
    try {
      const state: Suspended = {
        version: 1, ...(flow.revision && { revision: flow.revision }), stages: flow.stages.length, stage: stage + 1,
        ...(Object.keys(params).length > 0 && { params }), total: this.total, answered: reply.total,
        ...(this.failure && { failure: this.failure.toJSON() }), requests: questions.map(({ request }) => request),
        ...(this.shared !== undefined && { shared: this.shared }),
        items: going.map(({ ordinal, key, state, waits }) => ({
          i: ordinal, k: key, ...(state !== undefined && { s: state }), ...(waits.length > 0 && { r: waits }),
        })),
      };
      body = Buffer.from(writeJSON(state));
    } catch (err) {
      throw new Failure('bad_state', `the chunk's state cannot be written: ${said(err)}`);
    }
    if (body.length > MAX_STATE) {
      throw new Failure('state_too_large', `the state of the chunk's ${going.length} items takes ${body.length} bytes, and a flow `
        + `keeps at most ${MAX_STATE}; keep less, use smaller chunks, or store the data elsewhere`);
    }
    const fields: [string, string][] = [
      ...metaFields(head), ...traceFields(reply.trace), ...askerFields(head),
      ['Tranche-Flow-Answered', String(reply.total)], ['Tranche-Flow-Total', String(this.total)],
      ['Tranche-Flow-Begun', String(Math.round(reply.began ?? now()))],
      ['Tranche-Flow-Asks', [...new Set(questions.map(({ request }) => request.endpoint))].join(',')],
    ];
    const leave = async (): Promise<Failure | undefined> => {
      try {
        await flow.store.write(flowID(head, flow.name, stage), fields, body);
      } catch (err) {
        if (apiCode(err) !== FULL) throw err;
        return new Failure('flow_full', 'stream TRANCHE_FLOW has no room for the chunk; suspend fewer at a time, keep smaller '
          + 'states, or give the stream more bytes', true);
      }
      const left = [...questions];
      await Promise.all(Array.from({ length: PUBLISHERS }, async () => {
        for (let one = left.shift(); one; one = left.shift()) {
          await flow.host.bus.store(`tranche.work.${one.request.endpoint}`, toHeaders(one.fields), one.body);
        }
      }));
      return undefined;
    };
    return { begun: true, leave };
  }

  /** Puts the replies into the items of the stage that they lead to. */
  merge(from: Suspended, replies: StageReply[]): void {
    const at = new Map(from.items.map(({ i }, n) => [i, n]));
    const dropped = new Set<FlowItem>();
    from.requests.forEach((request, r) => {
      const waits = (n: number): boolean => from.items[n]!.r?.includes(r) ?? false;
      const seen = new Set<number>();
      const mine = replies.filter((reply) => reply.request === r);
      const give = (item: FlowItem, slot: Slot): void => {
        if (slot.e && !request.keep) item.giveUp(slotValue(slot) as Failure);
        else item.answers.set(request.target, slot);
      };
      for (const { message } of mine) {
        for (const slot of message.slots) {
          const n = at.get(slot.i);
          if (n === undefined || seen.has(n) || !waits(n)) continue;
          seen.add(n);
          give(this.items[n]!, slot);
        }
      }
      const failure = mine.find(({ message }) => message.failure)?.message.failure;
      this.items.forEach((item, n) => {
        if (seen.has(n) || !waits(n)) return;
        if (failure) {
          dropped.add(item);
          this.failure ??= new Failure(failure.code, `${request.target}: ${failure.message}`, failure.retry);
          return;
        }
        give(item, { i: item.ordinal, e: {
          code: 'unanswered', message: `endpoint ${request.endpoint} has left the item out of its reply`, retry: true } });
      });
    });
    this.items = this.items.filter((item) => !item.answered && !dropped.has(item));
  }
}

// Who asked, as it stands with the state: whatever becomes of the rest, the asker can be told.
function askerFields(head: Head): [string, string][] {
  const fields: [string, string][] = [['Tranche-Deliveries', String(head.deliveries)]];
  if (!head.replyTo.startsWith('tranche.reply.')) fields.push(['Tranche-Reply-To', head.replyTo]);
  if (head.stack) fields.push(['Tranche-Stack', head.stack]);
  if (head.root !== head.slice) fields.push(['Tranche-Root', head.root]);
  if (head.origin) fields.push(['Tranche-Origin', head.origin]);
  if (head.requeued) fields.push(['Tranche-Requeued', String(head.requeued)]);
  return fields;
}
