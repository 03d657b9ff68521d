// The result of a rerun's sample, in a sentence.
import { inert, num } from "../format.js";

/**
 * causes classifies the current groups of errors. While the rest waits, failures in a group that was rerun, and new
 * groups, come from the canary. before are the earlier groups, select what was rerun. Returns {same, other}, or null
 * if unknown.
 */
export function causes(before, select, now) {
  const ids = before?.map((g) => g.id);
  const ran = select.failed ? ids : select.groups;
  if (!ids || !ran) return null;
  return { same: now.filter((g) => ran.includes(g.id)), other: now.filter((g) => !ids.includes(g.id)) };
}

/** verdict describes {done, failed} of a sample that was rerun or run for the first time. */
export function verdict({ done, failed }, why = null, again = true) {
  const all = done + failed;
  if (all === 0) return "";
  if (failed === 0) return all === 1 ? "The item of the canary is done." : `All ${num(all)} of the canary are done.`;
  const many = failed < all ? `${num(failed)} of the ${num(all)} of the canary failed`
    : all === 1 ? "The item of the canary failed" : `All ${num(all)} of the canary failed`;
  const first = many + (again ? " again" : "");
  if (!why || why.same.length + why.other.length === 0) return first + ".";
  if (why.other.length === 0) return `${first}, for the same cause as before: ${names(why.same)}.`;
  if (why.same.length === 0) return `${first}, for another cause than before: ${names(why.other)}.`;
  return `${first}: as before with ${names(why.same)}, and otherwise than before with ${names(why.other)}.`;
}

const names = (groups) => groups.slice(0, 2).map((g) => inert(g.shape ? `${g.code} “${g.shape}”` : g.code, 160)).join(", ") +
  (groups.length > 2 ? ` and ${groups.length - 2} more` : "");
