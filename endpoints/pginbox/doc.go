// Package pginbox commits a service's own database work once, although a chunk may arrive twice.
//
//	inbox, err := pginbox.New(pool, pginbox.Config{})
//	err = inbox.Create(ctx)
//	err = endpoints.HandleList(svc, "interest", book, endpoints.Wrap(inbox.Once()))
//
//	func book(ctx context.Context, chunk *endpoints.Chunk[account, booking]) error {
//	    _, err := pginbox.Tx(ctx).Exec(ctx, `INSERT INTO bookings …`)
//	    …
//	}
//
// # Guarantees
//
// A chunk's handler runs in one transaction. In the same one the inbox claims the chunk's items before the handler and
// stores their answers after it, and only when that has committed do the answers leave. So an item's writes and its
// answer are there together or not at all, and an item that comes again, in the same chunk or another one, is answered
// from memory: the handler does not see it. A delivery that overlaps with one still at work waits for its end.
//
// An error, a panic or a time-out of the handler undoes the whole chunk, and so does a commit that fails; the error
// speaks for all its items, answered or not. When the outcome of a commit is not known the chunk counts as failed: it
// will be tried again, and if it had committed, that is answered from memory. Deadlocks and serialization failures are
// such errors, too; chunks that overlap cannot deadlock by their claims, which are made in the order of the ordinals.
//
// # What is remembered
//
// Results, binary ones too, and errors that are not retryable. An item that the handler left out or answered by Retry
// is forgotten, to be tried again, but what the handler has written for it is committed with the rest: undo it with a
// savepoint (Tx(ctx).Begin), or write only for items that get a final answer.
//
// The key is the endpoint and stage, the stack of endpoints that wait for it, and the item's run, step, ordinal and
// generation: what [endpoints.ItemInfo.IdempotencyKey] says. A re-run of a run has another generation, so it does the
// work again; where that is wrong, the service needs a key of its own in its own tables.
//
// In a flow each stage has a memory of its own. An item that a stage sends on has no answer to remember: when the stage
// comes again, its handler sees the item again, and [Done] says that what it wrote before is committed.
//
// # Not its job
//
// It does not work with HandleEach, whose items run at the same time, each for itself: they are answered with an error
// that says so. Memory is pruned when the service calls [Inbox.Prune], and not by itself.
//
// # Concurrency
//
// An Inbox is safe for concurrent use. The transaction is the chunk's: use it from one goroutine at a time. It is open
// while the handler runs, so do not wait in there for other services: that is what flows are for.
package pginbox
