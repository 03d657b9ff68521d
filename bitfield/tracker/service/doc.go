// Package service offers the tracker to anybody who has a fan-out of their own: open a batch under an owner's key, add
// n items, hand their ids out, acknowledge them in any order, and be told once that none is missing.
//
// It stands on package tracker, and adds what a service needs: idempotent opens and adds, acks over several batches,
// items that failed with a code, one event at the end, and an end for what everybody forgot.
//
//	open ──Seal──▶ sealed ──last ack──▶ completed ──after Keep──▶ deleted
//	  └─idle for OpenIdle──▶ expired ◀──idle for SealedIdle─┘ ──after Keep──▶ deleted
//
// # Guarantees
//
// A batch is completed by exactly one call, a Seal or an Ack, and only that call is told so; the event is inserted into
// the outbox run_event in its transaction, once. An item counts as failed, or as done, by the first ack of it that is
// committed; every later one changes nothing. Adding with a key that was used before adds nothing and returns the same
// groups. A batch that was not opened here, like that of a run, does not exist for this package.
//
// Every function works in the caller's transaction, which must be READ COMMITTED. After an error the transaction must
// be rolled back: some of a call may have been carried out.
//
// # Locks
//
// Those of package tracker (groups in ascending order, then the batch row, batches by ascending id), and last rows of
// tracker_service, again by ascending id. A row of tracker_failed is written by who holds its group, and so waits for
// nobody. An ack writes the row of tracker_service once a second at most, and skips it when somebody holds it: there is
// no hot row.
//
// # Not its job
//
// It publishes nothing, calls no webhook, reads no text of ids, and starts no goroutines.
package service
