// Package responder answers requests of core NATS.
//
// Requests are worked on side by side, as many as there is room for, so that one that waits for PostgreSQL holds up
// none. Nodes that listen to the same subject share its requests.
//
// Guarantees: a request is answered or refused at once, never put off without bounds; what was taken before
// [Responder.Close] has its answer when that returns nil.
//
// Not its job: what requests mean, and how answers and refusals are written.
//
// Concurrency: all methods may be called at any time.
package responder
