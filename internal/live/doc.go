// Package live tells watchers of runs what changes while they look on.
//
// A [Hubs] has one hub for each run that somebody watches. The hub asks PostgreSQL a few times a second which blocks
// have changed, reads those, compares them with what it saw before, and publishes the difference as runs of items that
// are now in a state. All watchers share it, so a thousand of them cost the database what one does; without a watcher
// nothing is asked.
//
// Guarantees: whoever begins to watch, then reads the planes, and then applies every change in order, ends at the
// truth, also when changes come and go between two looks: a block that comes to rest is told once more as a whole. A
// watcher that was cut off goes on where it was if that is not too long ago, and is told to read the planes again if it
// is. A watcher that is slow gets changes put together, never a queue of them; what is kept for watchers is bounded. An
// outage of the database is told, and its end. A watcher ends when its context or [Hubs.Close] does.
//
// Not its job: HTTP, and who may watch.
//
// Concurrency: a Hubs is safe for concurrent use; a [Watcher] belongs to one goroutine.
package live
