// Package orchestrator is a node: it cuts ready items into slices, publishes them as list requests, records the
// replies, and reissues what is lost on the way.
//
// This package has the node's life: session, lease, leader tasks, and the building of its components ([New]). The
// packages below it do the work; they do not know the node, and one another mostly as an interface.
//
// # Path of a slice
//
// The claimer (dispatch) takes slices from PostgreSQL. A publisher reads their items, builds the request and
// publishes it under the slice's id. Once JetStream has acknowledged it, the slice is marked as sent. From then on
// any node records the reply: many replies in one transaction, acknowledged to JetStream after the commit.
//
// The node itself processes slices of steps that are not of kind endpoint. It reads the items with the results that
// the step sees, and calls a function, a service over core NATS, or one of Config.Fetchers. It records many chunks in
// a transaction. Such a slice stays claimed until then, so it is released with the node's session. The concurrent
// work is limited by pace (per function, host, source), and in bytes.
//
// # What it waits for, and until when
//
//   - claimed, not yet sent: the node's session, which expires after SessionTTL without a heartbeat, or
//     DefaultClaimTTL of workqueue/dispatch; then reissued
//   - claimed and processed by the node itself: the step's timeout, counted from its begin, after which a call that has
//     not returned is abandoned; or the node's session
//   - sent, not delivered to a service: a service; at its deadline it gets a new one, or is reissued if its
//     request is gone
//   - sent and delivered: a reply, until the deadline, counted from the delivery
//   - a lost or recreated stream: every node notices within StreamsInterval, and its requests are reissued
//   - scheduled: its time, then the next claim
//   - delivered too often without an answer: the server's advisory, or the leader's sweep of the consumers every
//     ReconcileInterval; then it becomes a dead letter, its requester is notified, and it is removed from the stream
//   - a dead letter: a node that stores it; requeued: a node that sends it, or the leader
//   - the leader's work: the lease, LeaseTTL
//
// # Guarantees
//
// At-least-once execution, exactly-once acknowledgement per item and generation. A node may die at any instruction.
//
// # Concurrency
//
// A [Node] runs its own goroutines until [Node.Run] returns. Its other methods are safe for concurrent use.
package orchestrator
