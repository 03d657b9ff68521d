// What to try when items run again: how many first, and how many in a request.

import { num } from "../format.js";

/** sampleFrom is from how many items on a sample goes first. */
export const sampleFrom = 20;

/** sampleOf is how many of so many items to try first. */
export const sampleOf = (items) => Math.max(5, Math.min(50, Math.ceil(items / 50)));

// Codes that speak of size or time: smaller requests help against those.
const sizeCodes = /time.?out|deadline|memory|too_(large|big|many)|exhausted|deliver|unanswered|payload/i;

/**
 * suggestion says what size of request to try for a group of errors, {chunk, why}: what nodes have learned of the
 * endpoint, or half of what failed for want of time or room. Null: nothing speaks for another size.
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
