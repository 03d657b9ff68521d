// Package tracker knows, for any fan-out, which of its items are still missing, and says exactly once that none is.
//
// A batch is opened, gets groups of up to 8192 items (one bit an item, set while the item is pending), and is sealed
// when no more groups will come. Acks clear bits, by mask, in any order and as often as anyone likes. The batch is
// completed by whichever comes last, the seal or the ack of the last item, and only that one call reports it.
//
//	open ──Seal──▶ sealed ──last ack──▶ completed
//	  └──Seal of a batch with nothing pending──▶ completed ──Rearm──▶ sealed, next generation
//	open, sealed ──Cancel──▶ cancelled
//
// Every function works inside the caller's transaction, so an ack commits together with the result that it
// acknowledges, or not at all. A function that returns one of this package's errors has changed nothing.
//
// # Locks
//
// A transaction locks group rows first, in ascending order of group, and the batch row after them. Seal, AddGroups and
// Cancel lock only the batch row; an ack takes it only when a group became empty, so acks of one batch share no hot
// row; Rearm takes both. A caller that acks several batches in one transaction goes by ascending batch id, and one
// that adds groups or seals does so after its acks. The transaction must be READ COMMITTED (PostgreSQL's default) or be
// retried on serialization failures.
//
// That Seal and the ack that empties a group both write the batch row is what makes completion exact: the second of two
// such transactions waits for the first, and then decides by what the first one left.
//
// # Not its job
//
// It does not know what the items are, does not retry, publishes nothing and starts no goroutines. Functions are safe
// for concurrent use as far as their transactions are.
package tracker
