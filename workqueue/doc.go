// Package workqueue defines the store's types: IDs, steps, slices, causes, errors. The packages below it hold all
// SQL of Tranche, except that of trackers in bitfield/tracker:
//
//	database                             connections, and transactions that are retried
//	start, dispatch, settle              items in, work out, outcomes in
//	control, redo                        operators' actions on runs
//	inspect, health, report, export      reading runs and outcomes
//	pace, forecast                       what endpoints can take; when runs will end
//	collector, schedule, alert, deadletter, retention, erasure
//	session, identity                    nodes, leases, JetStream's state, request keys; users
//	doctor                               consistency checks
//	order                                which items go one at a time, without I/O
//	internal/pg, ledger, plane           PostgreSQL; audit and events; bitmaps and the graph of steps
//
// Each package with SQL has a Store, made from the one database.DB by its New.
//
// # The one idea
//
// An item's state is a bit, and work is a mask. For each step of a run, 8192 consecutive items share one work_block
// row with the planes ready, done and failed. Two more exist where needed: held, by a canary or a lane, and skipped,
// because a needed step failed. A slice is one attempt at one chunk: a mask of bits in one block. An item is in
// flight while a live slice (scheduled, claimed or sent) has it in its remaining bits; in no plane and no slice, it
// waits for another step. The moves:
//
//	cut      ready → slice                              [dispatch.Store.Claim]
//	record   slice → done, failed, or a new slice       [settle.Store.Record]
//	unlock   waiting → ready, or skipped                at later steps, by [settle.Store.Record]
//	release  slice → a new slice, or two halves         [settle.Store.Expire], [settle.Store.EndSession] and the sweeps
//	reset    done, failed or slice → ready              [redo.Store.Reset], [redo.Store.Rerun]; later steps wait
//	approve  held → ready                               [control.Store.Approve], [control.Store.CheckCanary]
//
// Each step needs only steps with smaller numbers. An item becomes ready at a step in the transaction that records
// the last thing it waits for. Claims pass over a step with a barrier until its needed steps have ended for all
// items ([dispatch.Store.CheckBarriers]). A step's result survives a reset of earlier steps, and is recomputed only
// if a part that it sees changed.
//
// A claim decides what it takes under the locks of its step and endpoint, so limits and rates are exact over all
// nodes. It takes nothing of a held run ([control.Store.Pause], [control.Store.CheckThreshold]). An endpoint that is
// down ([pace.Store.CheckBreaker]) gets probes of one item. [health.Store.Explain] says for every missing item what
// it waits for, and until when.
//
// # Guarantees
//
// The slice ID is the fence: every write about a slice names the ID and the expected state, so a superseded attempt,
// a late reply or a node without its session changes nothing. Recording is one transaction, from the fence to the
// completion of the run. Exactly one commit completes a generation of a run.
//
// Deadlines, leases and sessions are compared only with the database's clock.
//
// # Locks
//
// Rows are locked in one order: the leader's lease, run_step, endpoint_pace, slices by ID, lanes by number, blocks
// by (run, step, block), tracker groups, the tracker batch, run_fail_fast, batchrun. A transaction that ends with a
// deadlock or serialization failure is retried entirely. Recording never locks endpoint_pace. In a run of several
// steps a block's row at step 0 is its gate: settling outcomes at any step locks it first.
//
// Dead letters and endpoint settings have separate rows, locked with nothing else. Operators' changes to them are
// audited in the same transaction.
//
// # Not its job
//
// It does not use NATS and starts no goroutines that outlive a call. A [database.DB] is safe for concurrent use.
package workqueue
