// Answers items with their id, as runEcho does.

import { Service, connect, handleList } from 'tranche-endpoints';

const stop = new AbortController();
process.on('SIGTERM', () => stop.abort());
const nc = await connect();
const service = new Service(nc, { name: 'echo', version: '1.0.0' });
handleList(service, 'echo', (chunk) => {
  for (const item of chunk.items) item.reply({ of: item.in.id });
}, { concurrency: 1 });
console.error('child is ready');
await service.run(stop.signal);
await nc.drain();
