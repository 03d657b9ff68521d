// Package orchestrator is a node: it cuts ready items into slices, publishes them as list requests, records the
// replies, and reissues what is lost on the way. This package has its session, lease, leader tasks and construction
// ([New]). The packages below it do the work, and know each other mostly as interfaces.
//
// # Path of a slice
//
// The claimer (dispatch) takes slices from PostgreSQL. A publisher builds and publishes each request under the
// slice's id. Once JetStream has acknowledged it, the slice is marked as sent. Then any node records the reply: many
// in one transaction, acknowledged to JetStream after the commit.
//
// The node itself processes slices of steps that are not of kind endpoint, by a function, a service over core NATS,
// or one of Config.Fetchers. They stay claimed until their results are recorded, so the end of the session releases
// them. Concurrent work is limited by pace (per function, host, source), and in bytes.
//
// # What it waits for, and until when
//
//   - claimed, not sent: the session, which expires after SessionTTL without a heartbeat, or DefaultClaimTTL of
//     workqueue/dispatch; then reissued
//   - claimed and processed by the node itself: the step's timeout from its start, after which the call is abandoned;
//     or the session
//   - sent, not delivered to a service: a service; at its deadline it gets a new one, or is reissued if its
//     request is gone
//   - sent and delivered: a reply, until the deadline, counted from the delivery
//   - a lost or recreated stream: every node notices within StreamsInterval, and its requests are reissued
//   - scheduled: its time, then the next claim
//   - delivered too often without an answer: the server's advisory, or the leader's sweep every ReconcileInterval;
//     then it becomes a dead letter, its requester is notified, and it is removed from the stream
//   - a dead letter: a node that stores it; requeued: a node that sends it, or the leader
//   - the leader's work: the lease, LeaseTTL
//
// # Guarantees
//
// At-least-once execution, exactly-once acknowledgement per item and generation. A node may die at any instruction. A
// [Node] runs its own goroutines until [Node.Run] returns. Its other methods are safe for concurrent use.
package orchestrator
