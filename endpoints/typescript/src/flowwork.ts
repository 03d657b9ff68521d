// Runs a chunk through a flow's stages: its questions, its state and the answers.

import { FULL, apiCode, subjectOfCalls } from './bus';
import type { FlowEndpoint } from './flow';
import { type Ask, FlowItem, Stage } from './flowitem';
import { MAX_STATE, type Suspended, flowID, sliceOf } from './flowstore';
import type { StageReply } from './gather';
import type { Job, Outcome } from './job';
import { now } from './reply';
import { CALLS } from './slots';
import {
  Failure, type Head, MAX_BODY, MAX_ITEMS, MAX_STACK, type Slot, depth, metaFields, said, slotValue, toHeaders, traceFields,
  writeJSON,
} from './wire';

const RESERVE = 1024;
const PUBLISHERS = 8; // requests of a stage being published concurrently

interface Question {
  readonly request: Suspended['requests'][number];
  readonly items: FlowItem[];
  readonly fields: [string, string][];
  readonly body: Buffer;
}

/** @internal Runs a chunk through all stages that need no answers. */
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
    if (!(await flow.slots.take(job.lane, false))) return { begun: false };
    const since = performance.now();
    try {
      job.reply.began ??= now();
      while (this.items.length > 0) {
        const failure = await job.run(this.stage, () => this.items.map(({ key }) => key),
          (signal) => flow.stages[this.stage]!(new Stage(this, this.items, signal)));
        if (failure) {
          this.failure ??= failure;
          break;
        }
        job.closed = true; // later answers would be lost
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
      flow.slots.give(job.lane, since);
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

  // Builds the requests of the stage. A repeated stage may ask in another order but must produce the same requests.
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

  // Stores the chunk in the stream and sends its requests. The message that led here is acknowledged only after that:
  // a crash at any point repeats the stage, under the same IDs.
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
          const { endpoint } = one.request;
          const subject = job.lane === CALLS ? await subjectOfCalls(flow.host.bus, endpoint) : `tranche.work.${endpoint}`;
          await flow.host.bus.store(subject, toHeaders(one.fields), one.body);
        }
      }));
      return undefined;
    };
    return { begun: true, leave };
  }

  /** Adds the replies to the items of the next stage. */
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

// The requester's headers, stored with the state, so that it can be answered even if the body cannot be read.
function askerFields(head: Head): [string, string][] {
  const fields: [string, string][] = [['Tranche-Deliveries', String(head.deliveries)]];
  if (!head.replyTo.startsWith('tranche.reply.')) fields.push(['Tranche-Reply-To', head.replyTo]);
  if (head.stack) fields.push(['Tranche-Stack', head.stack]);
  if (head.root !== head.slice) fields.push(['Tranche-Root', head.root]);
  if (head.origin) fields.push(['Tranche-Origin', head.origin]);
  if (head.requeued) fields.push(['Tranche-Requeued', String(head.requeued)]);
  return fields;
}
