// Package fanout asks Tranche's tracker service over NATS: when are all my fanned-out events done?
//
//	trackers, err := fanout.New(nc, fanout.Config{Actor: "billing"})
//	batch, err := trackers.Open(ctx, fanout.BatchSettings{Owner: "billing", Key: "2026-11"})
//	added, err := trackers.Add(ctx, batch.ID, 20_000, "first")
//	for id := range added.IDs() {
//		publish(id.String(), …) // whoever has worked on it acknowledges the id, in any language
//	}
//	sealed, err := trackers.Seal(ctx, batch.ID)
//	…
//	acked, err := trackers.Ack(ctx, id)
//	if acked.Completed(id.Batch) { … } // this call, and no other, has completed the batch
//
// A batch has groups of up to 8192 items, and an item is a bit: a million of them take 125 kB, and no row each. Every
// call may be made again: a batch is opened once for an owner and a key, items are added once for a key, and an item
// that was acknowledged before stays so.
//
// # Guarantees
//
// An answer comes after the commit. Of all calls that acknowledge and seal exactly one is told that it completed the
// batch; when its answer is lost nobody is, which is why the event on [CompletedSubject] is what to rely on: it is
// published at least once, under one id. A call that failed as a whole has changed nothing.
//
// # Not its job
//
// It keeps nothing and tries nothing again. Errors of the service are [*Error]; [Error.Temporary] says that the same
// call may succeed later.
//
// A [Client] is safe for concurrent use.
package fanout
