'use strict';

// A service for Tranche endpoints, written from docs/protocol.md. The numbers of "rules" are those of its section
// Acknowledgement.
//
//   const service = new Service(nc, { name: 'interest', version: '1.0.0' });
//   service.list('year-end-interest', async (chunk) => {
//     for (const item of chunk.items) item.reply({ amount: item.payload.balance * 0.015 });
//   });
//   await service.run(signal); // until the AbortSignal is aborted and all that was begun is answered

const { AckPolicy, JSONCodec, connect, nanos } = require('nats');
const { setMaxListeners } = require('node:events');
const { hostname } = require('node:os');
const { randomUUID } = require('node:crypto');
const { setTimeout: pause } = require('node:timers/promises');
const { Failure, Foreign, Reply, readBody, readHead } = require('./message');
const { Pull } = require('./pull');

const STREAM = 'TRANCHE_WORK';
const PULL_BYTES = 8 * 1024 * 1024;
const SETTLE = 100; // ms; an open pull ends so long after the service was told to stop: it may be delivering just now
const KNOWN_FOR = 100;
const REPLY_PATIENCE = 30_000;
const MUTE = 4_000; // JetStream says nothing for so long: it is asked at the other servers of the cluster
const ROUND = 2_000; // so long between two rounds of asking them
const STALE = 4e9; // ns; a leader that has not heard of the others for so long is none
const FULL = 10054; // what JetStream says of a message that is too large for a stream: trying again is no use

class Service {
  constructor(nc, { name, version, drainTimeout = 25_000, log = console.error }) {
    Object.assign(this, { nc, name, version, drainTimeout, log });
    this.instance = randomUUID();
    this.identity = `${name}@${version} ${this.instance}`;
    this.endpoints = new Map();
  }

  // list has handler called with each chunk for an endpoint, concurrency of them at once.
  list(endpoint, handler, { concurrency = 2 } = {}) {
    this.endpoints.set(endpoint, new Endpoint(this, endpoint, handler, concurrency));
  }

  async run(stopping) {
    this.js = this.nc.jetstream();
    this.jsm = await this.nc.jetstreamManager({ checkAPI: false, timeout: 2_000 });
    const listed = await this.announce();
    const late = new AbortController();
    setMaxListeners(0, stopping, late.signal); // one for each chunk at work
    aborted(stopping).then(() => pause(this.drainTimeout, null, { ref: false })).then(() => late.abort());
    await Promise.all([...this.endpoints.values()].map((endpoint) => endpoint.run(stopping, late.signal)));
    await listed.stop();
    await this.nc.flush();
  }

  // announce lists the service for discovery ($SRV.PING, INFO, STATS).
  async announce() {
    const status = (name) => this.endpoints.get(name).status();
    const listed = await this.nc.services.add({
      name: this.name, version: this.version, metadata: { tranche: '1', host: hostname(), instance: this.instance },
      statsHandler: async ({ name }) => status(name),
    });
    for (const name of this.endpoints.keys()) {
      const handler = (err, msg) => err || msg.respond(JSONCodec().encode(status(name)));
      listed.addEndpoint(name, { subject: `tranche.status.${name}`, handler });
    }
    return listed;
  }

  // elsewhere takes the connection to another server if JetStream answers a question there: the one at hand may be cut
  // off from its cluster. While nobody answers it stays: in an election everybody is silent.
  async elsewhere(question) {
    if (Date.now() - (this.looked ?? 0) < ROUND) return false; // another endpoint has looked
    this.looked = Date.now();
    const { options } = this.nc;
    const urls = [options.servers ?? [], this.nc.info?.connect_urls ?? []].flat(); // there is no info while it reconnects
    const known = urls.map((url) => url.replace(/^.*(\/\/|@)/, ''));
    try {
      for (const server of new Set(known.filter((url) => url !== this.nc.getServer()))) {
        if (await answersAt(options, server, question)) {
          await this.nc.reconnect();
          return true;
        }
      }
    } catch (err) {
      this.log(`looking for another server: ${err.message}`);
    }
    return false;
  }

  // publish returns when the message has arrived. It tries again under the same Nats-Msg-Id, for a while.
  async publish(subject, headers, body) {
    if (subject.startsWith('tranche.call.')) { // a caller waits there; nobody stores it
      this.nc.publish(subject, body, { headers });
      return this.nc.flush();
    }
    const msgID = headers.get('Nats-Msg-Id');
    const end = Date.now() + REPLY_PATIENCE;
    for (let wait = 25; ; wait = Math.min(2 * wait, 500)) {
      try {
        return await this.js.publish(subject, body, { headers, msgID, timeout: 2_000 });
      } catch (err) {
        const hopeless = err.code === 'MAX_PAYLOAD_EXCEEDED' || err.api_error?.err_code === FULL;
        if (hopeless || this.nc.isClosed() || Date.now() > end) throw err;
      }
      await pause(wait);
    }
  }
}

// Endpoint fetches requests and takes each from its delivery to its acknowledgement.
class Endpoint {
  constructor(service, name, handler, concurrency) {
    Object.assign(this, { service, name, handler, concurrency, own: concurrency });
    this.held = new Map(); // delivered and not yet dealt with: by stream sequence and time, the last delivery
    this.pulls = new Set(); // open, or with something still to come
    this.running = 0;
    this.changed = new Event();
    this.stats = { chunks: 0, processed: 0, errors: 0, nanoseconds: 0 };
    this.known = { at: 0 };
  }

  async run(stopping, late) {
    aborted(stopping).then(() => this.changed.tell());
    let asked;
    while (!stopping.aborted) {
      try {
        asked ??= Date.now();
        const info = await this.bind();
        if (!leads(info.cluster)) throw new Stale('the leader has not heard of the other servers');
        asked = undefined;
        this.beat(info.config.ack_wait / 1e6 / 3);
        while (!stopping.aborted) await this.pull(stopping, late);
      } catch (err) {
        this.service.log(`${this.name}: waiting for ${STREAM}: ${err.message}`);
        if (asked && (err instanceof Stale || Date.now() - asked > MUTE)) {
          if (await this.service.elsewhere(`$JS.API.CONSUMER.INFO.${STREAM}.${this.name}`)) asked = undefined;
        }
        await pause(250);
      }
    }
    const owes = () => [...this.pulls].some(({ owed }) => owed.messages > 0);
    while (this.held.size > 0 || owes()) await this.changed.wait();
    for (const pull of this.pulls) pull.close();
    clearInterval(this.beating);
  }

  // bind looks the shared consumer up, and creates it when it is not there.
  async bind() {
    const { consumers } = this.service.jsm;
    try {
      return await consumers.info(STREAM, this.name);
    } catch (err) {
      if (err.api_error?.err_code !== 10014) throw err; // not "consumer not found"
    }
    return consumers.add(STREAM, {
      durable_name: this.name, filter_subject: `tranche.work.${this.name}`, ack_policy: AckPolicy.Explicit,
      ack_wait: nanos(15_000), max_deliver: 20, max_ack_pending: 10_000, max_waiting: 4096,
    });
  }

  // pull asks for as many requests as there is room for (rule 1), and returns when the server has ended the pull, whose
  // requests may come after that. It throws when the consumer has to be found again.
  async pull(stopping, late) {
    while (this.room().batch < 1 && !stopping.aborted) await this.changed.wait();
    const { nc } = this.service;
    const made = await this.made(); // before the pull: what it delivers is of this consumer, or an earlier one
    if (!made) throw new Error(`consumer ${this.name} is not there`);
    const { batch, bytes } = this.room();
    if (batch < 1 || stopping.aborted) return;
    const pull = new Pull(nc, `$JS.API.CONSUMER.MSG.NEXT.${STREAM}.${this.name}`, {
      batch, bytes: Math.max(bytes, nc.info.max_payload + 4096),
    }, {
      take: (msg) => this.take(msg, made, stopping, late),
      changed: () => this.changed.tell(),
    });
    this.pulls.add(pull);
    pull.closed.then(() => this.pulls.delete(pull));
    const stop = () => setTimeout(() => pull.end(), SETTLE);
    stopping.addEventListener('abort', stop);
    try {
      await pull.over;
    } finally {
      stopping.removeEventListener('abort', stop);
    }
  }

  // room returns what may be asked for: what is held counts, and what is still to come of pulls that are over.
  room() {
    const owed = [...this.pulls].map((pull) => pull.owed);
    return {
      batch: owed.reduce((n, { messages }) => n - messages, 2 * this.concurrency - this.held.size),
      bytes: [...[...this.held.values()].map(({ msg }) => msg.data.length), ...owed.map(({ bytes }) => bytes)]
        .reduce((n, bytes) => n - bytes, PULL_BYTES),
    };
  }

  // take notes a delivery. A request that is held already was delivered again: the later delivery is the one to
  // acknowledge. Sequences alone do not tell requests apart: a stream that was made anew uses them again (rule 7).
  take(msg, made, stopping, late) {
    const [deliveries, sequence, , time] = msg.reply.split('.').slice(-5);
    const id = `${sequence}/${time}`;
    const isNew = !this.held.has(id);
    this.held.set(id, { msg, made });
    if (!isNew) return;
    this.handle(id, msg, Number(deliveries), stopping, late)
      .catch((err) => this.service.log(`${this.name}: ${err.stack}`))
      .finally(() => {
        this.held.delete(id);
        this.changed.tell();
      });
  }

  async handle(id, msg, deliveries, stopping, late) {
    let head;
    try {
      head = readHead(msg.headers, this.name);
    } catch (err) { // rule 5; nobody can be told
      this.service.log(`${this.name}: a request cannot be read: ${err.message}`);
      return this.tell(id, err instanceof Foreign ? nak(10_000) : `+TERM ${err.message}`);
    }
    const { nc, identity } = this.service;
    const reply = new Reply(head, identity, nc.info.max_payload, (...m) => this.service.publish(...m));
    let request;
    try {
      request = readBody(head, msg.data);
    } catch (err) {
      return this.settle(id, reply, err, `+TERM ${err.message}`);
    }
    if (deliveries > head.deliveries) { // rule 6
      const message = `the chunk was delivered ${deliveries} times and never answered`;
      return this.settle(id, reply, new Failure('too_many_deliveries', message, true), '+ACK');
    }
    while (this.running >= this.concurrency && !stopping.aborted) await this.changed.wait();
    if (stopping.aborted) return this.tell(id, nak(2 * SETTLE)); // nothing was begun (rule 8)
    return this.serve(id, head, request, reply, late);
  }

  async serve(id, head, request, reply, late) {
    const began = process.hrtime.bigint();
    this.running++;
    reply.begin();
    const chunk = new Chunk(head, request, reply);
    let failure;
    let giveUp;
    const outOfTime = new Promise((_, reject) => {
      giveUp = () => reject(new Failure('shutdown', 'the service stopped before it got to the rest', true));
      late.addEventListener('abort', giveUp);
    });
    try {
      await Promise.race([this.handler(chunk), outOfTime]);
    } catch (err) {
      failure = err instanceof Failure ? err : new Failure('handler_error', String(err?.message ?? err), true);
    } finally {
      late.removeEventListener('abort', giveUp);
      chunk.closed = true;
      this.running--;
    }
    if (reply.total === request.items.length) failure = undefined; // there is nothing left for it to speak for
    await this.settle(id, reply, failure, '+ACK');
    this.stats.chunks++;
    this.stats.processed += request.items.length;
    this.stats.errors += reply.errors;
    this.stats.nanoseconds += Number(process.hrtime.bigint() - began);
  }

  // settle ends the reply and then lets the request go.
  async settle(id, reply, failure, how) {
    try {
      await reply.finish(failure);
    } catch (err) { // rule 4
      this.service.log(`${this.name}: the reply could not be sent: ${err.message}`);
      return this.tell(id, nak(2_000));
    }
    // JetStream has every message of the reply. Only now may the request go (rule 3).
    return this.tell(id, how);
  }

  // tell answers a delivery, unless the consumer that made it is no more (rule 7).
  async tell(id, how) {
    const made = await this.made();
    const delivery = this.held.get(id);
    if (made && delivery.made === made) delivery.msg.respond(how);
  }

  // made returns when the consumer was made, as of at most KNOWN_FOR ago; nothing when the server does not say.
  made() {
    if (Date.now() - this.known.at >= KNOWN_FOR) {
      const made = this.service.jsm.consumers.info(STREAM, this.name).then((info) => {
        this.obey(info.config.metadata?.['tranche-concurrency']);
        return leads(info.cluster) ? info.created : undefined;
      }, () => undefined);
      this.known = { at: Date.now(), made };
    }
    return this.known.made;
  }

  // obey takes the concurrency that operators have set, or the service's own when they have set none.
  obey(setting) {
    const concurrency = /^[1-9]\d{0,3}$/.test(setting) && setting <= 1024 ? Number(setting) : this.own;
    if (concurrency === this.concurrency) return;
    this.concurrency = concurrency;
    this.changed.tell();
  }

  // beat says, in time, that what is held is being worked on (rule 2).
  beat(interval) {
    clearInterval(this.beating);
    this.beating = setInterval(async () => {
      if (this.held.size === 0) return;
      const made = await this.made();
      for (const delivery of this.held.values()) if (made && delivery.made === made) delivery.msg.respond('+WPI');
    }, interval);
  }

  status() {
    const { nanoseconds, ...counts } = this.stats;
    const average = counts.processed ? Math.round(nanoseconds / counts.processed) : 0;
    return { ...counts, in_flight: this.held.size, avg_per_item: average, concurrency: this.concurrency };
  }
}

// Chunk is what a handler works on. Of two answers to an item the first counts; an item without one is tried again. A
// result may have 64 MiB. What reply and bytes return can be awaited: then no more of large results is held than is
// under way.
class Chunk {
  constructor(head, { items, params }, reply) {
    Object.assign(this, { head, params, closed: false });
    const answered = new Set();
    const add = (ordinal, members) => {
      if (this.closed || answered.has(ordinal)) return undefined;
      answered.add(ordinal);
      return reply.add(ordinal, members);
    };
    this.items = items.map((item) => ({
      ...item,
      // the same for every attempt at the item, and another after a re-run
      idempotencyKey: `${head.run}/${head.step}/${item.ordinal}/${head.generation}`,
      reply: (result) => add(item.ordinal, { d: result === undefined ? null : result }),
      bytes: (data, type) => add(item.ordinal, { t: type, b: Buffer.from(data) }),
      fail: (code, message) => add(item.ordinal, { e: new Failure(code, message) }),
      retry: (code, message) => add(item.ordinal, { e: new Failure(code, message, true) }),
    }));
    this.flush = () => this.closed || reply.flush(); // sends what has been answered so far
  }
}

// Event wakes all who wait for it.
class Event {
  constructor() {
    this.tell();
  }

  tell() {
    this.wake?.();
    this.next = new Promise((wake) => { this.wake = wake; });
  }

  wait() {
    return this.next;
  }
}

// answersAt reports whether JetStream answers a question at another server, by a leader who has a quorum.
async function answersAt(options, servers, question) {
  let there;
  try {
    there = await connect({ ...options, servers, reconnect: false, waitOnFirstConnect: false, timeout: 1_000 });
    const { data } = await there.request(question, undefined, { timeout: 1_000 });
    const { error, cluster } = JSONCodec().decode(data);
    return error?.code !== 503 && leads(cluster);
  } catch {
    return false;
  } finally {
    await there?.close();
  }
}

class Stale extends Error {}

// leads reports whether who leads a consumer has heard of enough of the others.
function leads(cluster) {
  const others = cluster?.replicas ?? [];
  return 2 * (1 + others.filter(({ offline, active }) => !offline && active < STALE).length) > others.length + 1;
}

const nak = (delay) => `-NAK {"delay":${nanos(delay)}}`;

const aborted = (signal) => new Promise((done) => {
  if (signal.aborted) done();
  else signal.addEventListener('abort', done, { once: true });
});

module.exports = { Failure, Service };
