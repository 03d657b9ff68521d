// Package schedule knows when a schedule is due: it reads the YAML of a schedule, and computes due times, starts and
// what to make of due times that have passed.
//
// A [Spec] comes from [Parse]. [Spec.Next] is its due time after another; [Spec.Planned] is when the run of a due time
// is to start, with jitter and window; [Spec.DoneBy] is when it should have ended; [Spec.Due] divides the due times
// that have passed by the misfire policy; [Spec.Resolve] fills a due time into params, file names, URLs and queries.
//
// Expressions are read and stepped by robfig/cron, which is asked in UTC only, where every day has 24 hours. What a
// zone's clock makes of it is decided here:
//
//   - With fixed hours a due time is the first instant at which the zone's clock shows that time or a later one. So a
//     time that the clock leaves out is due when the clock jumps over it, and a time that it shows twice is due at the
//     first.
//   - With an hour that begins with * it is every instant at which the clock shows a time that matches: hours count as
//     they pass, and none is doubled or lost.
//   - An interval (every) counts from 1970-01-01T00:00Z, whatever clocks show, and does not begin anew when a schedule
//     is applied again.
//
// Guarantees: whatever the text, Parse neither panics nor takes long, and an expression that never fires is an error.
// Everything is a function of its arguments and of the time zones, which the program contains: all nodes agree.
//
// Not its job: the time that it is, which the caller takes from the database; to store or to start anything.
//
// Concurrency: a Spec may be used by any number of goroutines.
package schedule
