// Package schedules starts the runs of schedules: the leader takes due times as they come and starts a run for each, as
// the schedule's policies say. It also reads items from where schedules take them: files below a directory that the
// operator names, and URLs.
//
// Guarantees: one run for a due time, whichever node takes it, starts it, dies over it or comes back to it. The fire's
// key is unique in PostgreSQL, the run has it as its idempotency key, and the run begins in the transaction that notes
// the fire as started under the leader's lease. Due times are compared with the database's time only. Nothing outside
// of the operator's directory is read, and nothing is asked for that the operator's file does not let steps ask for.
// What a URL answers is taken whole or not at all.
//
// Not its job: when a schedule is due, which orchestrator/schedule knows; what is stored, which is workqueue's; how a
// run is started, which the API's package does for people and for schedules alike.
//
// Concurrency: Files and Web are safe for concurrent use.
package schedules
