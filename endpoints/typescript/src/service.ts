// A service: endpoints on one connection, from their announcement to their drain.

import { setMaxListeners } from 'node:events';
import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';

import { jetstreamManager } from '@nats-io/jetstream';
import { type Msg, type NatsConnection, connect } from '@nats-io/transport-node';

import { type Bus, NatsBus } from './bus';
import { Direct } from './direct';
import { announce } from './discovery';
import { FlowEndpoint } from './flow';
import type { Endpoint, Host, Wrapper } from './job';
import { Puller, type Source, leads } from './puller';
import { STAGE, WORK, checkName, said } from './wire';

const ROUND = 2_000; // ms between rounds of asking other servers

export interface ServiceOptions {
  /** Shown in discovery: 1 to 64 of A-Z a-z 0-9 _ -. */
  name: string;
  /** A semantic version. Default 0.0.0. */
  version?: string;
  /** How long running chunks may continue when the service stops, in milliseconds. Default 25,000. */
  drainTimeout?: number;
  /** Called with each log line. Default: standard error. */
  log?: (line: string) => void;
  /** Run around all handlers, the first outermost. */
  wrap?: Wrapper[];
}

/** Statistics of an endpoint, as `tranche endpoints` shows them. */
export interface EndpointStatus {
  endpoint: string;
  state: 'listening' | 'waiting' | 'draining';
  /** Why it is waiting. */
  reason?: string;
  chunks: number;
  processed: number;
  errors: number;
  in_flight: number;
  avg_per_item: number;
  concurrency: number;
  /** Whether concurrency counts items. */
  each: boolean;
  /** Whether calls are read apart from chunks. */
  lane: boolean;
  redelivered: number;
  given_up: number;
  stages: number;
  rebinds: number;
}

interface Served {
  readonly endpoint: Endpoint;
  pullers: Puller[];
  calls?: Puller; // of calls
  direct?: Direct;
}

/** Serves endpoints, which handleList, handleEach and handleFlow add before it runs. */
export class Service {
  readonly name: string;
  readonly version: string;
  readonly instance = randomUUID();
  /** @internal */ readonly host: Host;
  /** @internal */ readonly bus: Bus;
  /** @internal */ readonly endpoints = new Map<string, Endpoint>();
  readonly #nc: NatsConnection;
  readonly #served = new Map<string, Served>();
  readonly #late = new AbortController();
  readonly #drainTimeout: number;
  #running = false;
  #draining = false;
  #looked = 0;

  constructor(nc: NatsConnection, options: ServiceOptions);
  /** @internal */
  constructor(nc: NatsConnection, options: ServiceOptions, bus?: Bus);
  constructor(nc: NatsConnection, options: ServiceOptions, bus?: Bus) {
    const { name, version = '0.0.0', drainTimeout = 25_000, log = (line: string) => console.error(line), wrap = [] } = options;
    this.name = checkName(name);
    this.version = version;
    this.#nc = nc;
    this.#drainTimeout = drainTimeout;
    this.bus = bus ?? new NatsBus(nc);
    setMaxListeners(0, this.#late.signal); // one per running chunk
    this.host = {
      bus: this.bus, identity: `${name}@${version} ${this.instance}`.slice(0, 256), wrap, late: this.#late.signal, log,
    };
  }

  /** @internal */
  register(endpoint: Endpoint): void {
    if (this.#running) throw new Error(`endpoint ${endpoint.name}: the service runs already`);
    if (this.endpoints.has(endpoint.name)) throw new Error(`endpoint ${endpoint.name} has a handler already`);
    this.endpoints.set(endpoint.name, endpoint);
  }

  /** Changes an endpoint's concurrency for this instance. A value set by an operator has precedence. */
  setConcurrency(endpoint: string, concurrency: number): void {
    const found = this.endpoints.get(endpoint);
    if (!found) throw new Error(`there is no endpoint ${endpoint}`);
    found.own = concurrency;
    found.slots.resize(concurrency);
  }

  /**
   * Serves until stopping aborts and all running chunks are answered. Requests not started go to other instances. It
   * waits for missing servers and streams.
   */
  async run(stopping: AbortSignal): Promise<void> {
    this.#running = true;
    setMaxListeners(0, stopping);
    const jsm = await jetstreamManager(this.#nc, { checkAPI: false, timeout: 2_000 });
    for (const endpoint of this.endpoints.values()) {
      const served: Served = { endpoint, pullers: [] };
      const { name, slots } = endpoint;
      const source = (stream: string, filter: string, take: Source['take'], room: () => number): Source => ({
        stream, name, filter, take, room,
        obey: (concurrency) => this.#obey(served, concurrency),
        log: (line) => this.host.log(`${name}: ${line}`),
        elsewhere: (question) => this.#elsewhere(question),
      });
      served.pullers.push(new Puller(source(WORK, `tranche.work.${name}`,
        (delivery) => endpoint.accept(delivery), () => endpoint.room()), this.#nc, jsm));
      served.calls = new Puller({ ...source(WORK, `tranche.work.${name}+`,
        (delivery) => endpoint.accept(delivery), () => 2 * (slots.size + slots.kept)),
      name: `${name}+`, obey: () => {}, aside: true }, this.#nc, jsm);
      if (endpoint instanceof FlowEndpoint) {
        served.pullers.push(new Puller({ ...source(STAGE, `tranche.stage.${name}.>`,
          (delivery) => endpoint.deal(delivery), () => 2 * endpoint.room()), obey: () => {} }, this.#nc, jsm));
      }
      served.direct = new Direct(endpoint, this.#nc);
      this.#served.set(name, served);
    }
    const listed = announce(this.#nc, {
      name: this.name, id: this.instance, version: this.version,
      metadata: { tranche: '1', host: hostname(), instance: this.instance, sdk: 'typescript' },
    }, () => [...this.#served.keys()], (name) => this.#status(name), (name) => this.endpoints.get(name)!.options.schema ?? {});
    await Promise.all([aborted(stopping).then(() => this.#drain()), ...[...this.#served.values()].flatMap(
      ({ pullers, calls, direct }) => [...pullers, calls, direct].map((part) => part?.run(stopping)))]);
    listed();
    if (!this.#nc.isClosed()) await this.#nc.flush();
    this.host.log(`${this.name}: gone`);
  }

  #drain(): void {
    this.#draining = true;
    this.host.log(`${this.name}: draining`);
    for (const endpoint of this.endpoints.values()) endpoint.stop();
    setTimeout(() => this.#late.abort(), this.#drainTimeout).unref();
  }

  #obey({ endpoint, pullers, calls }: Served, concurrency: string | undefined): void {
    const before = endpoint.slots.size;
    endpoint.obey(concurrency);
    if (endpoint.slots.size !== before) for (const puller of [...pullers, calls]) puller?.look();
  }

  /** Returns undefined while all endpoints listen, else the reason. Use it for a readiness probe. */
  notReady(): string | undefined {
    if (this.#served.size === 0) return 'the service does not run';
    const waiting = this.status().find(({ state }) => state !== 'listening');
    return waiting && `${waiting.endpoint}: ${waiting.reason ?? waiting.state}`;
  }

  /** Returns the statistics of each endpoint. */
  status(): EndpointStatus[] {
    return [...this.#served.keys()].map((name) => ({ endpoint: name, ...this.#status(name) }) as unknown as EndpointStatus);
  }

  #status(name: string): Record<string, unknown> {
    const { endpoint, pullers, calls, direct } = this.#served.get(name)!;
    const waiting = pullers.find(({ state }) => state !== 'listening');
    const held = [...pullers, calls, direct].reduce((n, part) => n + (part?.held ?? 0), 0);
    const state = this.#draining ? 'draining' : waiting ? 'waiting' : 'listening';
    return {
      ...endpoint.status(), in_flight: held, lane: calls?.state === 'listening' && !this.#draining, state, ...(state === 'waiting' && waiting && { reason: waiting.reason }),
      rebinds: pullers.reduce((n, { rebinds }) => n + Math.max(rebinds, 0), 0),
    };
  }

  // Moves the connection to another server if JetStream answers a query there: this one may be partitioned. Without
  // an answer it stays, since all are silent during an election.
  async #elsewhere(question: string): Promise<boolean> {
    if (Date.now() - this.#looked < ROUND) return false; // another endpoint did so recently
    this.#looked = Date.now();
    const { options = {} } = this.#nc as { options?: Parameters<typeof connect>[0] & { servers?: string | string[] } };
    const urls = [options.servers ?? [], this.#nc.info?.connect_urls ?? []].flat(); // no info while reconnecting
    const known = urls.map((url) => url.replace(/^.*(\/\/|@)/, ''));
    try {
      for (const server of new Set(known.filter((url) => url !== this.#nc.getServer()))) {
        if (await answersAt(options, server, question)) {
          await this.#nc.reconnect();
          return true;
        }
      }
    } catch (err) {
      this.host.log(`looking for another server: ${said(err)}`);
    }
    return false;
  }
}

// Whether a leader with quorum answers the query at another server.
async function answersAt(options: object, servers: string, question: string): Promise<boolean> {
  let there: NatsConnection | undefined;
  try {
    there = await connect({ ...options, servers, reconnect: false, waitOnFirstConnect: false, timeout: 1_000 });
    const msg: Msg = await there.request(question, undefined, { timeout: 1_000 });
    const { error, cluster } = msg.json<{ error?: { code: number }; cluster?: Parameters<typeof leads>[0] }>();
    return error?.code !== 503 && leads(cluster);
  } catch {
    return false;
  } finally {
    await there?.close();
  }
}

/** @internal */
export function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((done) => {
    if (signal.aborted) done();
    else signal.addEventListener('abort', () => done(), { once: true });
  });
}

