// Serves three endpoints until SIGTERM or Ctrl-C: node-interest, a year's interest of accounts, in chunks;
// node-statement, a flow that queries it; and the conformance endpoint, named by CONFORMANCE_ENDPOINT.

import { setTimeout as pause } from 'node:timers/promises';

import { Binary, Failure, Service, connect, handleFlow, handleList, target } from 'tranche-endpoints';

// interest takes payloads such as {"id":"ACC-7","balance":"120.50"}.
function interest(chunk) {
  for (const item of chunk.items) { // here: one query for all of chunk.keys()
    const balance = Number(item.in?.balance);
    if (!Number.isFinite(balance)) item.fail('bad_payload', 'the payload has no "balance"');
    else if (balance < 0) item.fail('overdrawn', `the balance is ${balance.toFixed(2)}`);
    else item.reply({ amount: Math.round(balance * 1.5) / 100 });
  }
}

// statement queries the interest of the balance and of twice as much, and continues on any instance when both arrived.
const year = target('node-interest');
const doubled = year.as('doubled');
const statement = [
  (stage) => {
    for (const item of stage.items) {
      item.state = { balance: Number(item.in.balance) };
      year.ask(item, { balance: item.state.balance });
      doubled.ask(item, { balance: 2 * item.state.balance });
    }
  },
  (stage) => {
    for (const item of stage.items) {
      item.reply({ closing: item.state.balance + year.answer(item).amount, doubled: doubled.answer(item).amount });
    }
  },
];

// conformance implements the contract in docs/protocol.md, section Conformance.
async function conformance(chunk) {
  for (const item of chunk.items) await obey(chunk, item, item.in ?? {});
}

async function obey(chunk, item, order) {
  switch (order.do) {
    case 'hello': return item.reply({ conformance: 1 });
    case 'echo': return item.reply(order.value);
    case 'info': return item.reply({ key: item.key, params: item.params, idempotency_key: item.idempotencyKey });
    case 'fail': return item.fail(order.code, order.message);
    case 'retry': return item.retry(order.code, order.message);
    case 'skip': return undefined;
    case 'twice': item.reply('first'); return item.reply('second');
    case 'bytes': return item.reply(new Binary(Uint8Array.from({ length: order.n }, (_, n) => n), order.type));
    case 'part': return item.reply(await item.part(order.name));
    case 'big': return item.reply('x'.repeat(order.n));
    case 'partial': item.reply('sent'); return chunk.flush();
    case 'slow': await pause(order.ms); return item.reply({ slept: order.ms });
    case 'fail-chunk': throw new Failure(order.code, order.message, order.retry);
    default: return item.fail('unknown_order', `"do" is ${JSON.stringify(order.do)}`);
  }
}

const nc = await connect();
const stop = new AbortController(); // before, Ctrl-C ends the process
for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => stop.abort());
const service = new Service(nc, { name: 'node-interest', version: '1.0.0' });
handleList(service, 'node-interest', interest, { concurrency: 4, reserve: 1 }); // one slot is reserved for calls
handleFlow(service, 'node-statement', statement);
handleList(service, process.env.CONFORMANCE_ENDPOINT ?? 'node-conformance', conformance, { concurrency: 4 });
await service.run(stop.signal);
await nc.drain();
