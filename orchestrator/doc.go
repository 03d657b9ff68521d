// Package orchestrator is a node: it cuts ready items into slices, publishes them as list requests, records the
// replies, and sees to it that whatever is lost on the way is reissued.
//
// This package is the node's life: its session, the lease, its leader tasks, and the making of its rooms ([New]). What
// it does stands in packages beside it, which know nothing of the node, and of one another little more than an
// interface.
//
// # Way of a slice
//
// The claimer (dispatch) takes slices from PostgreSQL. A publisher reads their items, builds the request and publishes
// it under the slice's id; once JetStream has acknowledged it, the slice is marked as sent. From then on any node
// records the reply: many replies in one transaction, acknowledged to JetStream after the commit.
//
// A slice of a step that is not of kind endpoint the node works on itself: it reads the items with the parts that the
// step sees, calls a function, asks a service over core NATS, or has one of Config.Fetchers do it, and records what
// comes, many chunks in a transaction. Such a slice stays claimed until then, so it comes back with the node's session.
// What is worked on at once is bounded by pace (a function, a host, a source), and in bytes.
//
// # What it waits for, and until when
//
//   - claimed, not yet sent: the node's session, gone after SessionTTL without a heartbeat, or
//     DefaultClaimTTL of workqueue/dispatch; then reissued
//   - claimed and worked on by the node itself: the step's time, counted from its begin; a call that does not come back
//     then is given up; the node's session
//   - sent, not handed to a service yet: a service; at its deadline it gets a new one, or is reissued if its
//     request is gone
//   - sent and handed out: a reply, until the deadline, counted from the hand-out
//   - a lost or recreated stream: noticed by every node within StreamsInterval, and what it carried is reissued
//   - scheduled: its time, then the next claim
//   - delivered too often and never answered: the server's advisory, or the leader's sweep of the consumers every
//     ReconcileInterval; then buried, its asker told, and taken out of the stream
//   - a dead letter: a node that takes it in; requeued, a node that sends it, or the leader
//   - the leader's work: the lease, LeaseTTL
//
// # Guarantees
//
// At-least-once execution, exactly-once acknowledgement per item and generation. A node may die at any instruction.
//
// # Concurrency
//
// A [Node] runs its own goroutines between the start and the return of [Node.Run]; its other methods may be called from
// any goroutine.
package orchestrator
