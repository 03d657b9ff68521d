// Package fetch is what a node asks to get the parts of a chunk: one call with the items, and a slot for each of them
// back. Steps of kind http and sql are such fetchers, and so is the Go code of a step of kind local.
//
// A program that embeds a node gives it its local functions by name. [Each] makes a fetcher of a function that
// composes one item; [Typed] one of a function with types of its own for the payload and the result; [Func] one of a
// function that takes the whole chunk, for a query that fetches what all of its items need.
//
// Guarantees: what a fetcher returns is held against what was asked. A slot for an item that was not asked for is not
// taken, of two slots for one item the first counts, and an item without a slot is tried again: it is never a success.
// An error of the call speaks for the items without a slot. A panic in Each and Typed costs its item, with code
// wire.CodePanic, and a panic elsewhere the chunk.
//
// A call may be made more than once for the same item: a node that dies has its chunks fetched again by another. What
// must not happen twice is remembered under [Item.IdempotencyKey].
//
// Not its job: retries, pacing, limits, the database. The node does that, by slices, as for endpoints.
//
// Concurrency: a fetcher is called from several goroutines at once, one call for each chunk. It must end soon after its
// context: a call that does not is given up, and what it returns later is dropped; until then it keeps a worker.
package fetch
