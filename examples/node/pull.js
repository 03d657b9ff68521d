'use strict';

// One pull: a request for messages, and what comes of it. A server whose consumer has replicas says that a pull is over
// (409) before it sends the messages that wait for its quorum, so the inbox outlives the end of the pull.

const { createInbox, nanos } = require('nats');

const EXPIRES = 5_000; // ms, as are all times here
const HEARTBEAT = 500;
const LATE = 2_000; // so long messages that the server has promised count as held
const LINGER = 15_000; // AckWait: what comes later is delivered again

class Pull {
  // take is called with each message, and changed when fewer of them are owed.
  constructor(nc, subject, { batch, bytes }, { take, changed }) {
    Object.assign(this, { take, changed, inbox: createInbox(nc.options?.inboxPrefix) });
    this.left = { messages: batch, bytes }; // of what was asked for
    this.unsent = 0; // messages of these that the server will not send, as far as it has said
    this.owed = { messages: 0, bytes: 0 }; // what it has promised, after the end
    this.closed = new Promise((done) => { this.onClosed = done; });
    this.over = new Promise((done, fail) => Object.assign(this, { done, fail }));
    this.over.catch(() => {}); // nobody may be waiting for it any more
    this.sub = nc.subscribe(this.inbox, { callback: (err, msg) => (err ? this.end(err) : this.on(msg)) });
    this.silence = setTimeout(() => this.end(new Error('the server fell silent')), 3 * HEARTBEAT);
    nc.publish(subject, JSON.stringify({
      batch, max_bytes: bytes, expires: nanos(EXPIRES), idle_heartbeat: nanos(HEARTBEAT),
    }), { reply: this.inbox });
  }

  on(msg) {
    if (!this.ended) this.silence.refresh();
    if (msg.subject === this.inbox) return this.status(msg.headers);
    this.take(msg);
    this.left.messages--;
    this.left.bytes -= msg.data.length;
    if (this.ended) this.owe({ messages: this.owed.messages - 1, bytes: this.owed.bytes - msg.data.length });
    if (this.left.messages <= this.unsent) this.close();
  }

  status(headers) {
    const { code, description } = headers;
    if (code === 100) return; // a heartbeat
    const unsent = Number.parseInt(headers.get('Nats-Pending-Messages'), 10);
    if (code !== 408 && !(code === 409 && /batch completed|exceeds maxbytes/i.test(description))) {
      this.end(new Error(`${code} ${description}`)); // the consumer may be gone
    } else if (unsent >= 0) {
      const bytes = Number.parseInt(headers.get('Nats-Pending-Bytes'), 10) || 0;
      this.unsent = unsent;
      this.end(undefined, { messages: this.left.messages - unsent, bytes: this.left.bytes - bytes });
    } else {
      this.end();
    }
  }

  // end ends the pull for its owner, who may begin another, and waits for what is still to come.
  end(err, owed) {
    if (this.ended) return;
    this.ended = true;
    clearTimeout(this.silence);
    if (owed) this.owe(owed);
    if (owed?.messages <= 0) return this.close();
    this.timers = [setTimeout(() => this.owe({ messages: 0, bytes: 0 }), LATE), setTimeout(() => this.close(), LINGER)];
    if (err) this.fail(err);
    else this.done();
  }

  owe({ messages, bytes }) {
    this.owed = { messages: Math.max(messages, 0), bytes: Math.max(bytes, 0) };
    this.changed();
  }

  close() {
    this.ended = true;
    for (const timer of [this.silence, ...(this.timers ?? [])]) clearTimeout(timer);
    this.sub.unsubscribe();
    this.owe({ messages: 0, bytes: 0 });
    this.done();
    this.onClosed();
  }
}

module.exports = { Pull };
