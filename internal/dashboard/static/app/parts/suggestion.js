// Suggestions for a rerun: the sample's size, and the request size.

import { num } from "../format.js";

/** sampleFrom is the number of items from which a sample goes first. */
export const sampleFrom = 20;

export const sampleOf = (items) => Math.max(5, Math.min(50, Math.ceil(items / 50)));

// Codes about size or time, which smaller requests may avoid.
const sizeCodes = /time.?out|deadline|memory|too_(large|big|many)|exhausted|deliver|unanswered|payload/i;

/**
 * suggestion suggests a request size for a group of errors, {chunk, why}: what nodes learned about the endpoint, or
 * half of the size that failed for lack of time or memory. Null: no other size suggested.
 */
export function suggestion(group, step, pace) {
  const { chunk = 0, chunk_auto: auto = false } = step?.settings ?? {};
  if (pace?.chunk_cap && pace.chunk_cap < (chunk || Infinity)) {
    return { chunk: pace.chunk_cap, why: `requests of more than ${num(pace.chunk_cap)} items fail entirely` };
  }
  if (!auto && chunk > 1 && sizeCodes.test(group?.code ?? "")) {
    return { chunk: Math.floor(chunk / 2), why: `half of the ${num(chunk)} with which it failed` };
  }
  if (!auto && pace?.chunk && pace.chunk < chunk) {
    return { chunk: pace.chunk, why: `requests of ${num(pace.chunk)} items do best at the endpoint` };
  }
  return null;
}
