// Parts that fit no request: their bytes come from the nodes, over core NATS.

import { createHash } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';

import { PATIENCE } from './bus';
import type { Job } from './job';
import { Failure, type PartRef, said } from './wire';

const TIMEOUT = 5_000; // of one answer

/** @internal Fetches the bytes that a request refers to. */
export async function fetchPart(job: Job, i: number, step: string, { bytes, sha256 }: PartRef): Promise<Buffer> {
  const { endpoint, head } = job;
  const data = Buffer.alloc(bytes);
  let [from, wait, end] = [0, 50, Date.now() + PATIENCE];
  while (from < bytes) {
    if (job.closed) throw new Failure('shutdown', 'the handler ended', true);
    const query = JSON.stringify({ slice: head.root || head.slice, i, step, from, bytes, sha256 });
    let problem = 'the answer has a wrong size';
    try {
      const answer = await endpoint.host.bus.request(`tranche.part.${endpoint.name}`, Buffer.from(query), TIMEOUT);
      const code = answer.headers?.get('Nats-Service-Error-Code');
      problem = answer.headers?.get('Nats-Service-Error') || problem;
      if (code && code !== 'part_unavailable') throw new Failure(code, problem, code !== 'bad_request');
      if (!code && answer.data.length > 0 && answer.data.length <= bytes - from) {
        data.set(answer.data, from);
        [from, wait, end] = [from + answer.data.length, 50, Date.now() + PATIENCE];
        continue;
      }
    } catch (err) {
      if (err instanceof Failure) throw err;
      problem = said(err);
    }
    if (Date.now() + wait > end) {
      throw new Failure('part_unavailable', `part "${step}" has ${bytes} bytes; no node sent those from byte ${from} on: ${problem}`, true);
    }
    await pause(wait);
    wait = Math.min(2 * wait, 1_000);
  }
  if (createHash('sha256').update(data).digest('hex') !== sha256) {
    throw new Failure('part_gone', `part "${step}" has changed since the request`, true);
  }
  return data;
}
