// Requests over core NATS. They are not persisted, so one that cannot be taken is refused immediately.

import type { Msg, NatsConnection } from '@nats-io/transport-node';

import type { Endpoint } from './job';
import { Failure, said } from './wire';

const SHARE = 4; // requests held per slot
const LEAST = 16;
const BYTES = 16 * 1024 * 1024;

/** @internal */
export class Direct {
  held = 0;
  #bytes = 0;
  #stopped = false;
  #idle: () => void = () => {};

  constructor(readonly endpoint: Endpoint, readonly nc: NatsConnection) {}

  async run(stopping: AbortSignal): Promise<void> {
    const { name } = this.endpoint;
    const sub = this.nc.subscribe(`tranche.direct.${name}`, {
      queue: 'tranche', callback: (err, msg) => (err ? this.endpoint.host.log(`${name}: direct requests: ${err.message}`)
        : this.#take(msg)),
    });
    await new Promise<void>((done) => {
      if (stopping.aborted) done();
      else stopping.addEventListener('abort', () => done(), { once: true });
    });
    this.#stopped = true;
    await sub.drain().catch(() => {}); // the connection is lost, and the messages with it
    if (this.held > 0) await new Promise<void>((idle) => { this.#idle = idle; });
  }

  #take(msg: Msg): void {
    const { endpoint } = this;
    const { headers, data, subject } = msg;
    if (!headers?.get('Tranche-Reply-To').startsWith('tranche.call.')) {
      endpoint.host.log(`${endpoint.name}: a direct request does not say how its caller is answered; it is dropped`);
      return;
    }
    const drop = (err: unknown): void => endpoint.host.log(`${endpoint.name}: a direct request: ${said(err)}`);
    if (this.held >= Math.max(LEAST, SHARE * endpoint.slots.size)
      || (this.#bytes > 0 && this.#bytes + data.length > BYTES)) {
      endpoint.refuse(headers, new Failure('overloaded', `the service has ${this.held} requests for endpoint ${endpoint.name} `
        + 'waiting; try again later, start more instances, or raise its concurrency', true)).catch(drop);
      return;
    }
    if (this.#stopped) {
      endpoint.refuse(headers, new Failure('shutdown', 'the service is stopping', true)).catch(drop);
      return;
    }
    this.held++;
    this.#bytes += data.length;
    endpoint.accept({ subject, headers, data, deliveries: 1, id: '', stored: false, settle: async () => {} })
      .catch(drop).finally(() => {
        this.held--;
        this.#bytes -= data.length;
        if (this.held === 0) this.#idle();
      });
  }
}
