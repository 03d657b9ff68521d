// Package workqueue is the words of the store: ids, steps, slices, causes, errors. The packages below it, its rooms,
// have all SQL of Tranche, but for that of trackers, which is bitfield/tracker's:
//
//	database                       connections, and transactions that are run again
//	start, dispatch, settle        items in, work out, outcomes in; pace: what an endpoint can take
//	control, redo                  what operators do to a run
//	inspect, explain, report       what people ask of a run; inspect has the export, too
//	deadletter, collector, schedule, tracker, retention, plan     each whole, with its tables
//	session, outbox, streams, request, identity     of nodes, events, JetStream, requests that come twice, people
//	doctor, health                 is all well
//	order                          by what items follow each other, without I/O
//	internal/pg, ledger, plane     PostgreSQL; audit and events; bits, the graph of steps, what an outcome unlocks
//
// Each has a Store, made of the one database.DB by its New.
//
// # One idea
//
// An item's state is a bit, work is a mask. For each step of a run, 8192 consecutive items share one work_block row
// with three planes: ready, done and failed, and two more where they are needed: held, while a canary holds items back,
// and skipped, for items that are left out of a step because one that it needs has failed. A slice is one attempt at
// one chunk: a mask of bits in one block. An item is in flight while the remaining bits of a live slice (scheduled,
// claimed or sent) hold it; it is waiting for another step while it is in none of these. The moves:
//
//	cut      ready → slice                              [dispatch.Store.Claim]
//	record   slice → done, failed, or a new slice       [settle.Store.Record]
//	unlock   waiting → ready, or skipped                at the steps after, by [settle.Store.Record]
//	release  slice → a new slice, or two halves         [settle.Store.Expire], [settle.Store.EndSession] and the sweeps
//	reset    done, failed or slice → ready              [redo.Store.Reset], [redo.Store.Rerun]; the steps after wait
//	approve  held → ready                               [control.Store.Approve], [control.Store.CheckCanary]
//
// Steps are numbered so that each needs smaller numbers only. An item becomes ready at a step in the transaction that
// records the last thing that it waits for there. A step with a barrier is passed by in claims until what it needs has
// ended for all items ([dispatch.Store.CheckBarriers]). What a step has made of an item outlives a reset of the steps
// before, and is redone where a part that it sees has changed.
//
// What a claim may take is decided in it, under the locks of its step and its endpoint, so limits and rates are exact
// over all nodes. A run that is held ([control.Store.Pause], [control.Store.CheckThreshold]) gives nothing to claims;
// an endpoint that is down ([pace.Store.CheckBreaker]) gets a probe of one item at a time. [explain.Store.Explain] says
// for every item that is missing what it waits for, and until when.
//
// # Guarantees
//
// The slice id is the fence: every write about a slice names the id and the state it expects, so a superseded attempt,
// a late reply or a node that lost its session changes nothing. Recording is one transaction, from the fence to the
// completion of the run. Exactly one commit completes a generation of a run.
//
// Deadlines, leases and sessions are compared with the clock of the database and with nothing else.
//
// # Locks
//
// Rows are locked in one order: the leader's lease, run_step, endpoint_pace, slices by id, blocks by (run, step,
// block), tracker groups, the tracker batch, run_fail_fast, batchrun. A transaction that is interrupted as a deadlock
// or a serialization failure is run again as a whole. Who records never locks endpoint_pace. In a run of several steps
// the row of a block at step 0 is its gate: whoever settles outcomes there, at whatever step, has it first.
//
// Dead letters and the settings of endpoints have rows of their own that nothing else is locked with. What operators do
// to them has a row in the audit log, in the same transaction.
//
// # Not its job
//
// It does not talk to NATS and starts no goroutines that outlive a call. A [database.DB] is safe for concurrent use.
package workqueue
