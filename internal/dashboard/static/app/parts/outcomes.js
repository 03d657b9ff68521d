// What two runs of the same keys have as outcomes: [title, tone, meaning], in the order of importance.
export const outcomes = {
  newly_failing: ["Newly failing", "bad", "done then, failed now"],
  newly_fixed: ["Newly fixed", "ok", "failed then, done now"],
  changed: ["Another result", "warn", "done in both, with other bytes"],
  still_failing: ["Still failing", "bad", "failed in both"],
  unfinished: ["Without an outcome", "warn", "in one of them"],
  only_here: ["Only in this run", "info", "the other has no such key"],
  only_there: ["Only in the other run", "info", "this one has no such key"],
  not_compared: ["Not compared", "info", "done in both, by other steps"],
  unchanged: ["The same", "ok", "done in both, with the same bytes"],
};
