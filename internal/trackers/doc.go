// Package trackers is the tracker service: it tells anybody with a fan-out of their own when all its items are done.
// The HTTP API and NATS request/reply are two ways to the same [Service], and [Webhooks] tell of the ends of batches.
//
// Guarantees: a call answers after its commit, and has changed nothing when it fails because of what was asked. Exactly
// one call is told that it completed a batch, also when the acknowledgements of many share a transaction: those of one
// node that come at the same time are merged, and each is told what it did itself. An error says which text of the
// request it is about, and is never about that of another call. A webhook is sent at least once, under one id, signed,
// to the hosts that the operator's file means its secret for, and to no private address that it does not allow.
//
// Not its job: the bits, which are bitfield/tracker's; who may ask, which the API and NATS decide; leadership.
//
// Concurrency: a Service and Webhooks are safe for concurrent use. A Service has no goroutines but those that commit
// what somebody waits for.
package trackers
