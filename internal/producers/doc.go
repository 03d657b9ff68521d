// Package producers takes the operations that are added to collectors: over HTTP, by whoever serves it, and over core
// NATS, by a subject for each collector.
//
// An add is answered after its operations are committed. Adds that come for a collector at the same time share a
// transaction, since a commit costs the same for one operation as for thousands: the first begins at once, and those
// that come while it is under way go together next. Each gets an answer of its own. Adds of one collector are committed
// by a node in the order in which they came to it; who needs an order waits for the answer before adding more.
//
// What a node has under way is bounded in bytes; beyond, adds are refused and may be sent again. An add that was not
// answered may have been committed: sent again with the same ids, nothing is added twice.
//
// Not its job: flushing, roles, and who may publish what, which NATS knows.
//
// Concurrency: a [Producers] is safe for concurrent use.
package producers
