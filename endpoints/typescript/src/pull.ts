// One pull request and its messages. A server with a replicated consumer may report the end of a pull (409) before
// sending messages that wait for quorum, so the inbox outlives the pull.

import { type Msg, type MsgHdrs, type NatsConnection, type Subscription, createInbox, nanos } from '@nats-io/transport-node';

const EXPIRES = 5_000; // ms, like all times here
const HEARTBEAT = 500;
const LATE = 2_000; // how long messages promised by the server count as held
const LINGER = 15_000; // AckWait: later messages are redelivered

interface Amount {
  messages: number;
  bytes: number;
}

/** @internal */
export class Pull {
  /** Messages that the server still has to send after the end. */
  owed: Amount = { messages: 0, bytes: 0 };
  readonly over: Promise<void>;
  readonly closed: Promise<void>;
  readonly #inbox: string;
  readonly #left: Amount; // of the amount requested
  readonly #sub: Subscription;
  readonly #silence: NodeJS.Timeout;
  #unsent = 0; // messages that the server reported it will not send
  #ended = false;
  #timers: NodeJS.Timeout[] = [];
  #done: () => void = () => {};
  #fail: (err: Error) => void = () => {};
  #onClosed: () => void = () => {};

  /** take is called for each message, changed when owed changes. */
  constructor(
    nc: NatsConnection, subject: string, asked: Amount,
    private readonly take: (msg: Msg) => void, private readonly changed: () => void,
  ) {
    const { inboxPrefix } = (nc as { options?: { inboxPrefix?: string } }).options ?? {};
    this.#inbox = createInbox(inboxPrefix);
    this.#left = { ...asked };
    this.closed = new Promise((done) => { this.#onClosed = done; });
    this.over = new Promise((done, fail) => {
      this.#done = done;
      this.#fail = fail;
    });
    this.over.catch(() => {}); // it may have no waiter
    this.#sub = nc.subscribe(this.#inbox, { callback: (err, msg) => (err ? this.end(err) : this.#on(msg)) });
    this.#silence = setTimeout(() => this.end(new Error('the server fell silent')), 3 * HEARTBEAT);
    nc.publish(subject, JSON.stringify({
      batch: asked.messages, max_bytes: asked.bytes, expires: nanos(EXPIRES), idle_heartbeat: nanos(HEARTBEAT),
    }), { reply: this.#inbox });
  }

  #on(msg: Msg): void {
    if (!this.#ended) this.#silence.refresh();
    if (msg.subject === this.#inbox) {
      if (msg.headers) this.#status(msg.headers);
      return;
    }
    this.take(msg);
    this.#left.messages--;
    this.#left.bytes -= msg.data.length;
    if (this.#ended) this.#owe({ messages: this.owed.messages - 1, bytes: this.owed.bytes - msg.data.length });
    if (this.#left.messages <= this.#unsent) this.close();
  }

  #status(headers: MsgHdrs): void {
    const { code, description } = headers;
    if (code === 100) return; // heartbeat
    const unsent = Number.parseInt(headers.get('Nats-Pending-Messages'), 10);
    if (code !== 408 && !(code === 409 && /batch completed|exceeds maxbytes/i.test(description))) {
      this.end(new Error(`${code} ${description}`)); // the consumer may be gone
    } else if (unsent >= 0) {
      const bytes = Number.parseInt(headers.get('Nats-Pending-Bytes'), 10) || 0;
      this.#unsent = unsent;
      this.end(undefined, { messages: this.#left.messages - unsent, bytes: this.#left.bytes - bytes });
    } else {
      this.end();
    }
  }

  /** Ends the pull for its owner, who may start another, and keeps receiving what is owed. */
  end(err?: Error, owed?: Amount): void {
    if (this.#ended) return;
    this.#ended = true;
    clearTimeout(this.#silence);
    if (owed) this.#owe(owed);
    if (owed && owed.messages <= 0) {
      this.close();
      return;
    }
    this.#timers = [setTimeout(() => this.#owe({ messages: 0, bytes: 0 }), LATE), setTimeout(() => this.close(), LINGER)];
    if (err) this.#fail(err);
    else this.#done();
  }

  #owe({ messages, bytes }: Amount): void {
    this.owed = { messages: Math.max(messages, 0), bytes: Math.max(bytes, 0) };
    this.changed();
  }

  close(): void {
    this.#ended = true;
    for (const timer of [this.#silence, ...this.#timers]) clearTimeout(timer);
    this.#sub.unsubscribe();
    this.#owe({ messages: 0, bytes: 0 });
    this.#done();
    this.#onClosed();
  }
}
