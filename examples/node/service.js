'use strict';

// Serves two endpoints until SIGTERM or Ctrl-C: node-interest, a year's interest of accounts that come in chunks, and
// the one that `tranche conformance` asks for. NATS_URL, NATS_CREDS or NATS_NKEY, and CONFORMANCE_ENDPOINT may be set.

const { readFileSync } = require('node:fs');

const { connect, credsAuthenticator, nkeyAuthenticator } = require('nats');
const { setTimeout: pause } = require('node:timers/promises');
const { Failure, Service } = require('./tranche');

// interest takes payloads such as {"id":"ACC-7","balance":"120.50"}.
async function interest(chunk) {
  for (const item of chunk.items) { // here: one query for all keys of the chunk
    const balance = Number(item.payload?.balance);
    if (!Number.isFinite(balance)) item.fail('bad_payload', 'the payload has no "balance"');
    else if (balance < 0) item.fail('overdrawn', `the balance is ${balance.toFixed(2)}`);
    else item.reply({ amount: Math.round(balance * 1.5) / 100 });
  }
}

// conformance does what each payload asks for: the contract in docs/protocol.md, section Conformance.
async function conformance(chunk) {
  for (const item of chunk.items) await obey(chunk, item, item.payload ?? {});
}

async function obey(chunk, item, order) {
  switch (order.do) {
    case 'hello': return item.reply({ conformance: 1 });
    case 'echo': return item.reply(order.value);
    case 'info': return item.reply({ key: item.key, params: chunk.params, idempotency_key: item.idempotencyKey });
    case 'fail': return item.fail(order.code, order.message);
    case 'retry': return item.retry(order.code, order.message);
    case 'skip': return undefined;
    case 'twice': item.reply('first'); return item.reply('second');
    case 'bytes': return item.bytes(Uint8Array.from({ length: order.n }, (_, n) => n), order.type);
    case 'part': return part(item, item.parts.get(order.name));
    case 'big': return item.reply('x'.repeat(order.n));
    case 'partial': item.reply('sent'); return chunk.flush();
    case 'slow': await pause(order.ms); return item.reply({ slept: order.ms });
    case 'fail-chunk': throw new Failure(order.code, order.message, order.retry);
    default: return item.fail('unknown_order', `"do" is ${JSON.stringify(order.do)}`);
  }
}

function part(item, found) {
  if (found?.type) return item.bytes(found.data, found.type);
  return item.reply(found === undefined ? null : found.data);
}

// Who this is: by a file of credentials, by one with a seed, or by what stands before the @ of the first address.
function identity(server) {
  const { NATS_CREDS: creds, NATS_NKEY: seed } = process.env;
  if (creds) return { authenticator: credsAuthenticator(readFileSync(creds)) };
  if (seed) return { authenticator: nkeyAuthenticator(Buffer.from(readFileSync(seed, 'utf8').trim())) };
  const { username, password } = new URL(server.includes('://') ? server : `nats://${server}`);
  return username ? { user: decodeURIComponent(username), pass: decodeURIComponent(password) } : {};
}

async function main() {
  const stop = new AbortController();
  for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => stop.abort());
  const servers = (process.env.NATS_URL ?? 'nats://127.0.0.1:4222').split(',');
  const nc = await connect({
    ...identity(servers[0]), servers: servers.map((server) => server.replace(/\/\/.*@/, '//')), waitOnFirstConnect: true,
    maxReconnectAttempts: -1, reconnectTimeWait: 250, pingInterval: 2_000, maxPingOut: 2,
  });
  const service = new Service(nc, { name: 'node-interest', version: '1.0.0' });
  service.list('node-interest', interest, { concurrency: 4 });
  service.list(process.env.CONFORMANCE_ENDPOINT ?? 'node-conformance', conformance, { concurrency: 4 });
  await service.run(stop.signal);
  await nc.drain();
}

main().catch((err) => {
  console.error(err);
  process.exit(1);
});
