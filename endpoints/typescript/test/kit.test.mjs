import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { test } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';

import {
  Binary, Failure, NoListenersError, UnansweredError, call, callList, connect, handleEach, handleFlow, handleList, target,
} from 'tranche-endpoints';
import { Kit } from 'tranche-endpoints/testing';

import { CALLS, CHUNKS, Slots } from '../lib/slots.js';
import { readBody } from '../lib/wire.js';

const yearEnd = (chunk) => {
  for (const item of chunk.items) {
    if (item.in.cents < 0) item.fail('overdrawn', `the balance is ${item.in.cents}`);
    else item.reply({ cents: item.in.cents * 0.015, year: chunk.params.year, id: item.idempotencyKey });
  }
};

test('a list: results, errors, parameters, keys', async () => {
  const kit = new Kit();
  handleList(kit.service, 'interest', yearEnd);
  const reply = await kit.send('interest', [{ key: 'A', in: { cents: 200 } }, { key: 'B', in: { cents: -3 } }],
    { params: { year: '2026' } });
  const { cents, year, id } = reply.result('A');
  assert.deepEqual([cents, year], [3, '2026']);
  assert.equal(reply.error('B').code, 'overdrawn');
  assert.equal(reply.error('B').retry, false);
  const again = await kit.redeliver(reply);
  assert.equal(again.result('A').id, id);
  const other = await kit.reissue(reply, 'A');
  assert.equal(other.result('A').id, id);
  assert.equal(other.answered('B'), false);
});

test('a number that JSON lacks, or a promise, is an error of its item', async () => {
  const kit = new Kit();
  handleList(kit.service, 'odd', (chunk) => {
    for (const item of chunk.items) item.reply(item.key === 'C' ? Promise.resolve(1) : { paid: item.key === 'A' ? NaN : null });
  });
  const reply = await kit.send('odd', [{ key: 'A', in: 1 }, { key: 'B', in: 1 }, { key: 'C', in: 1 }]);
  assert.deepEqual(reply.error('A').toJSON(), {
    code: 'not_a_number', retry: false,
    message: 'the result cannot be written as JSON: its number "paid" is NaN, which JSON does not have' });
  assert.deepEqual(reply.result('B'), { paid: null });
  assert.equal(reply.error('C').message, 'the result cannot be written as JSON: it is a promise; await it');
});

test('a thrown error speaks for those without an answer', async () => {
  const kit = new Kit();
  handleList(kit.service, 'half', (chunk) => {
    chunk.items[0].reply(1);
    throw new Failure('db_down', 'no connection', true);
  });
  const reply = await kit.send('half', [{ key: 'A', in: 1 }, { key: 'B', in: 2 }]);
  assert.equal(reply.result('A'), 1);
  assert.equal(reply.answered('B'), false);
  assert.deepEqual(reply.failure.toJSON(), { code: 'db_down', message: 'no connection', retry: true });
});

test('a handler has its time, and what comes later is dropped', async () => {
  const kit = new Kit();
  let late;
  handleList(kit.service, 'slow', async (chunk) => {
    [late] = chunk.items;
    await new Promise((done) => { chunk.signal.addEventListener('abort', done); });
  }, { timeout: 20 });
  const reply = await kit.send('slow', [{ key: 'A', in: 1 }]);
  assert.equal(reply.failure.code, 'timeout');
  assert.equal(reply.answered('A'), false);
  late.reply('too late');
});

test('single items: so many concurrently, in any order', async () => {
  const kit = new Kit();
  let [now, most] = [0, 0];
  handleEach(kit.service, 'each', async (n, item) => {
    most = Math.max(most, ++now);
    await pause(n % 3);
    now--;
    if (n === 7) throw new Failure('seven', item.key);
    if (n === 8) throw new Error('eight');
    return n * 2;
  }, { concurrency: 3 });
  handleEach(kit.service, 'thenable', (n) => ({ then: (done, fail) => { n < 0 ? fail(new Failure('less', '')) : done(n * 2); } }));
  const items = Array.from({ length: 20 }, (_, n) => ({ key: `K-${n}`, in: n }));
  const reply = await kit.send('each', items);
  assert.equal(most, 3);
  assert.equal(reply.result('K-5'), 10);
  const errors = ['K-7', 'K-8'].map((key) => reply.error(key));
  assert.deepEqual(errors.map(({ code, message }) => [code, message]), [['seven', 'K-7'], ['handler_error', 'eight']]);
  const later = await kit.send('thenable', [{ key: 'A', in: 3 }, { key: 'B', in: -1 }]);
  assert.deepEqual([later.result('A'), later.error('B').code], [6, 'less']);
});

test('someone who waits takes the next free place before a list', async () => {
  const kit = new Kit();
  const order = [];
  const begun = new Promise((go) => {
    handleEach(kit.service, 'each', async (n) => {
      order.push(n);
      go();
      await pause(1);
      return n;
    }, { concurrency: 1 });
  });
  const batch = kit.send('each', Array.from({ length: 50 }, (_, n) => ({ key: `${n}`, in: n })));
  await begun;
  await call(kit.service, 'each', 'me', 'now');
  assert.ok(order.indexOf('now') < 40, `it was number ${order.indexOf('now')}`);
  await batch;
});

test('payloads are read, parts are there, bytes and large results arrive', async () => {
  const kit = new Kit({ maxPayload: 64 * 1024 });
  const answers = {
    big: () => 'x'.repeat(300_000),
    bytes: () => new Binary(Buffer.alloc(200_000, 7), 'image/png'),
    long: () => new Binary(Buffer.of(1), `image/${'x'.repeat(250)}`),
    words: () => new Binary(new Uint16Array([0x4241, 0x4443])),
    text: () => new Binary('text'),
    bare: (item) => item.fail('bare'),
    cycle: () => { const a = {}; a.a = a; return a; },
    half: () => '\ud800',
    deep: () => JSON.parse('['.repeat(200) + ']'.repeat(200)),
    shallow: () => ['[{"\\'.repeat(300), '"', '\\ud800'],
    parts: async (item) => [(await item.part('logo')).type, await item.part('accounts'), await item.part('none')],
  };
  handleList(kit.service, 'parts', async (chunk) => { for (const item of chunk.items) item.reply(await answers[item.key](item)); }, {
    read: (payload) => {
      if (payload?.bad) throw new Error('it is bad');
      return payload;
    },
  });
  const reply = await kit.send('parts', [
    { key: 'text' }, { key: 'bare' }, { key: 'words' }, { key: 'long' },
    { key: 'big' }, { key: 'bytes' }, { key: 'cycle' }, { key: 'half' }, { key: 'deep' }, { key: 'shallow' }, { key: 'bad', in: { bad: true } },
    { key: 'parts', parts: { logo: new Binary(Buffer.from('x'), 'image/gif'), accounts: [1] } },
  ]);
  assert.equal(reply.result('big').length, 300_000);
  assert.deepEqual([reply.result('bytes').data.length, reply.result('bytes').type], [200_000, 'image/png']);
  assert.equal(`${reply.result('words').data}`, 'ABCD');
  assert.equal(reply.result('long').type, 'application/octet-stream');
  assert.deepEqual(['text', 'bare', 'cycle', 'half', 'deep', 'bad'].map((key) => reply.error(key).code),
    ['bad_result', 'bare', 'bad_result', 'lone_surrogate', 'nested_too_deep', 'bad_payload']);
  assert.deepEqual(reply.result('shallow'), answers.shallow());
  assert.deepEqual(reply.result('parts'), ['image/gif', [1], null]);
  assert.equal(readBody('', Buffer.from('{"items":[{"i":0,"k":"A","d":1,"p":null}]}')).items[0].k, 'A'); // as without parts
});

test('wrappers are around the handler, and set the trace', async () => {
  const said = [];
  const kit = new Kit({ wrap: [async (work, next) => {
    said.push(`${work.endpoint} ${work.stage} ${work.keys.join()}`);
    work.setTrace({ traceparent: '00-0123456789abcdef0123456789abcdef-0123456789abcdef-01', tracestate: '' });
    await assert.rejects(next, { code: 'no' });
    said.push(`errors ${work.errors}`);
  }] });
  handleList(kit.service, 'wrapped', (chunk) => {
    chunk.items[0].fail('a', 'b');
    throw new Failure('no', 'no');
  });
  await kit.send('wrapped', [{ key: 'A' }, { key: 'B' }]);
  assert.deepEqual(said, ['wrapped 0 A,B', 'errors 1']);
});

const accounts = target('accounts');
const rates = target('rates').keepErrors();

function statements(kit, options) {
  handleFlow(kit.service, 'statement', [
    (stage) => {
      stage.shared = { asked: stage.items.length };
      for (const item of stage.items) {
        if (!item.in.account) {
          item.fail('no_account', item.key);
          continue;
        }
        item.state = { name: item.in.name };
        accounts.ask(item, { id: item.in.account });
        if (item.in.currency) rates.ask(item, { to: item.in.currency });
      }
    },
    (stage) => {
      for (const item of stage.items) {
        const factor = rates.answer(item)?.factor ?? 1;
        const { balance } = accounts.answer(item);
        item.reply({ ...item.state, balance: balance * factor, of: stage.shared.asked, error: rates.error(item)?.code });
      }
    },
  ], options);
}

test('a flow asks two endpoints and joins what they say', async () => {
  const kit = new Kit();
  statements(kit);
  const keys = [];
  const answers = { gone: new Failure('gone', 'closed'), silent: undefined };
  kit.stub('accounts', (asked) => asked.map(({ query, key }) => {
    keys.push(key);
    return query.id in answers ? answers[query.id] : { balance: 100 };
  }));
  kit.stub('rates', (asked) => asked.map(({ query }) => (query.to === 'XXX' ? new Failure('unknown', 'XXX') : { factor: 2 })));
  const reply = await kit.send('statement', [
    { key: 'A', in: { name: 'Ada', account: '1', currency: 'NOK' } }, { key: 'B', in: { name: 'Bob', account: '2' } },
    { key: 'C', in: { name: 'Cyd' } }, { key: 'D', in: { name: 'Dan', account: 'gone' } },
    { key: 'E', in: { name: 'Eve', account: '5', currency: 'XXX' } }, { key: 'F', in: { account: 'silent' } },
  ]);
  assert.deepEqual(reply.result('A'), { name: 'Ada', balance: 200, of: 6 });
  assert.deepEqual(reply.result('B'), { name: 'Bob', balance: 100, of: 6 });
  assert.deepEqual(reply.result('E'), { name: 'Eve', balance: 100, of: 6, error: 'unknown' });
  assert.deepEqual(['C', 'D', 'F'].map((key) => reply.error(key).code), ['no_account', 'gone', 'unanswered']);
  assert.deepEqual(keys, ['A', 'B', 'D', 'E', 'F']);
});

test('a chunk that fails there fails here', async () => {
  const kit = new Kit();
  statements(kit);
  kit.stub('accounts', () => { throw new Failure('db_down', 'no connection', true); });
  const reply = await kit.send('statement', [{ key: 'A', in: { account: '1' } }, { key: 'B', in: {} }]);
  assert.deepEqual(reply.failure.toJSON(), { code: 'db_down', message: 'accounts: no connection', retry: true });
  assert.equal(reply.error('B').code, 'no_account');
  assert.equal(reply.answered('A'), false);
});

test('a stage is repeated when its reply is lost', async () => {
  const kit = new Kit();
  statements(kit);
  kit.stub('accounts', (asked) => asked.map(() => ({ balance: 1 })));
  kit.loseReply('statement');
  const reply = await kit.send('statement', [{ key: 'A', in: { account: '1' } }]);
  assert.equal(reply.result('A').balance, 1);
});

test('a request that is too large for a message is cut, and all of it is waited for', async () => {
  const kit = new Kit({ maxPayload: 32 * 1024 });
  let requests = 0;
  const wide = target('wide');
  handleFlow(kit.service, 'widen', [
    (stage) => {
      for (const item of stage.items) {
        item.state = 'y'.repeat(500);
        wide.ask(item, 'x'.repeat(1000));
      }
    },
    (stage) => { for (const item of stage.items) item.reply([wide.answer(item), item.state.length]); },
  ]);
  kit.stub('wide', (asked) => {
    requests++;
    return asked.map(({ query }) => query.length);
  });
  const items = Array.from({ length: 100 }, (_, n) => ({ key: `${n}`, in: n }));
  const reply = await kit.send('widen', items);
  assert.ok(requests > 3, `${requests}`);
  for (const { key } of items) assert.deepEqual(reply.result(key), [1000, 500]);
});

test('the last stage cannot ask, and one endpoint may be asked two things', async () => {
  const kit = new Kit();
  const [debit, credit] = [target('book').as('debit'), target('book').as('credit')];
  handleFlow(kit.service, 'transfer', [
    (stage) => {
      for (const item of stage.items) {
        debit.ask(item, -item.in);
        credit.ask(item, item.in);
      }
    },
    (stage) => {
      for (const item of stage.items) {
        if (item.key === 'B') item.next();
        else item.reply([debit.answer(item), credit.answer(item)]);
      }
    },
  ]);
  kit.stub('book', (asked) => asked.map(({ query }) => query));
  const reply = await kit.send('transfer', [{ key: 'A', in: 5 }, { key: 'B', in: 6 }]);
  assert.deepEqual(reply.result('A'), [-5, 5]);
  assert.equal(reply.error('B').code, 'no_next_stage');
});

test('calls: one, a list, errors, and no one there', async () => {
  const kit = new Kit();
  handleList(kit.service, 'interest', yearEnd);
  handleList(kit.service, 'asleep', () => new Promise(() => {}), { timeout: 500 });
  assert.equal((await call(kit.service, 'interest', 'A', { cents: 100 }, { params: { year: '1' } })).year, '1');
  assert.equal((await call(kit.service, 'interest', 'A', { cents: 100 }, { direct: true })).cents, 1.5);
  await assert.rejects(call(kit.service, 'interest', 'A', { cents: -1 }), { code: 'overdrawn', retry: false });
  await assert.rejects(call(kit.service, 'nobody', 'A', 1, { direct: true }), NoListenersError);
  const results = await callList(kit.service, 'interest', [{ key: 'A', in: { cents: 100 } }, { key: 'B', in: { cents: -1 } }]);
  assert.deepEqual(results.map(({ out, error }) => out?.cents ?? error.code), [1.5, 'overdrawn']);
  await assert.rejects(call(kit.service, 'asleep', 'A', 1, { timeout: 20 }), UnansweredError);
});

test('a slot that comes twice counts once', async () => {
  const { service: { bus }, service } = new Kit();
  const send = bus.send.bind(bus);
  const answer = (head, to, ...slots) => send(to, head, Buffer.from(JSON.stringify({ slots: slots.map((i) => ({ i, d: i })) })));
  const items = [{ key: 'A' }, { key: 'B' }];
  bus.send = async (_, head, body, to) => {
    await answer(head, to, 1);
    head.set('Tranche-Final', '2');
    await answer(head, to, 1);
    await answer(head, to, 0);
  };
  assert.deepEqual((await callList(service, 'each', items, { direct: true })).map(({ out }) => out), [0, 1]);
  bus.send = async (_, head, body, to) => {
    head.set('Tranche-Final', '2');
    await answer(head, to, 1, 1);
  };
  assert.equal((await callList(service, 'each', items, { direct: true }))[0].error.code, 'unanswered');
});

test('a circle of calls ends', async () => {
  const kit = new Kit();
  let deepest = '';
  handleList(kit.service, 'circle', async (chunk) => {
    deepest = chunk.meta.stack;
    chunk.items[0].reply(await call(kit.service, 'circle', 'A', 1));
  }, { concurrency: 20 });
  await assert.rejects(call(kit.service, 'circle', 'A', 1), { code: 'stack_too_deep' });
  assert.equal(deepest.split(',').length, 16);
});

test('who waits comes first, on a place that is kept or the next one, and chunks keep a share', async () => {
  const order = [];
  const slots = new Slots(2, 1);
  for (let n = 0; n < 2; n++) assert.ok(slots.tryTake(CHUNKS));
  assert.ok(!slots.tryTake(CHUNKS), 'the third place is for calls');
  assert.ok(slots.tryTake(CALLS));
  const waits = (name, lane) => slots.take(lane, false).then((mine) => { if (mine) order.push(name); });
  const chunk = waits('chunk', CHUNKS);
  const call = waits('call', CALLS);
  slots.give(CHUNKS, performance.now());
  slots.give(CHUNKS, performance.now());
  await Promise.all([chunk, call]);
  assert.deepEqual(order, ['call', 'chunk']);

  const one = new Slots(1, 0); // both want the one place all the time
  const had = [0, 0];
  const work = async (lane, ms) => {
    while (had[CHUNKS] + had[CALLS] < 1000) {
      await one.take(lane, true);
      const since = performance.now();
      await new Promise((done) => { setTimeout(done, ms); });
      had[lane] += performance.now() - since;
      one.give(lane, since);
    }
  };
  await Promise.all([...Array(20)].map(() => work(CALLS, 2)).concat(work(CHUNKS, 20), work(CHUNKS, 20)));
  const share = had[CHUNKS] / (had[CHUNKS] + had[CALLS]);
  assert.ok(share > 0.1 && share < 0.5, `chunks had ${share} of the time`);
});

test('reserve is held to its bounds', () => {
  const kit = new Kit();
  for (const reserve of [-1, 1.5, 1025]) assert.throws(() => handleList(kit.service, 'a', () => {}, { reserve }), /reserve/);
  handleEach(kit.service, 'b', () => 1);
  assert.equal(kit.service.endpoints.get('b').slots.kept, 1); // of the usual 8
});

test('with tls:// nothing is said to a server without TLS', async (t) => {
  const said = [];
  const server = createServer((socket) => {
    socket.on('error', () => {}).on('data', (data) => { said.push(`${data}`); socket.destroy(); });
    socket.write('INFO {"server_id":"A","version":"2.12.0","proto":1,"headers":true,"max_payload":1048576}\r\n');
  });
  t.after(() => server.close());
  await once(server.listen(0, '127.0.0.1'), 'listening');
  process.env.NATS_URL = `tls://user:secret@127.0.0.1:${server.address().port}`;
  await assert.rejects(connect({ waitOnFirstConnect: false, reconnect: false }, () => {}), /'tls'/);
  assert.deepEqual(said, []);
});
