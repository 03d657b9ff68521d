// Package endpoints is the SDK for services. docs/services.md is its guide; docs/protocol.md describes the wire
// protocol.
//
//	start      Connect, New, Config, Service (Run, Ready, Stats)
//	handle     HandleList: Chunk, Item       HandleEach: ItemOf, ItemInfo
//	           HandleFlow: Stage, StageItem, To, Target, None
//	answer     Item.Reply, Binary; Fail and Retry; PartOf
//	options    Concurrency, Timeout, Wrap; for flows Revision
//	call       Call, CallList, Direct, SlotError
//
// A program registers handlers on a [Service] and runs it:
//
//	svc, err := endpoints.New(nc, endpoints.Config{Name: "statements", Version: "1.0.0"})
//	err = endpoints.HandleEach(svc, "statement", makeStatement, endpoints.Concurrency(16))
//	err = svc.Run(ctx)
//
// [HandleList] calls the handler once per chunk, [HandleEach] once per item. [HandleFlow] serves an endpoint in
// stages that may query other endpoints; the next stage starts, on any instance, when their answers have arrived. To
// wait for an answer, for example in an HTTP handler, use [Call] or [CallList].
//
// A [Wrapper] runs around handlers: for transactions (package pginbox), spans and metrics (package telemetry).
// Package endpointstest runs a service in a unit test. Packages wire and stream implement the protocol and its use of
// JetStream; services rarely need them.
//
// # Guarantees
//
// Execution is at least once: a chunk is acknowledged only after JetStream has acknowledged every message of its
// reply, so it is redelivered if the service dies before that. The same holds for each stage of a flow; a repeated
// stage sends its requests under their old IDs. To make an effect happen once, use [ItemInfo.IdempotencyKey].
//
// An item that a handler does not answer is retried, never taken as successful. A panic or error costs an item or a
// chunk, not the service. A request that is redelivered repeatedly is processed alone; if the process still dies, the
// request fails with [wire.CodeDeliveries]. A request of [wire.ModeSingle] that fails with an error its handler did
// not choose is saved as a [wire.DeadLetter].
//
// A running service recovers automatically when NATS restarts, its streams are lost, or a missing permission
// ([PermissionError]) is granted.
//
// Untrusted input (requests, replies, flow states, dead letters) is limited in depth, count and decompressed size,
// and never causes a panic. A [wire.MalformedError] reports what is wrong with a message.
//
// # Limits
//
// The package uses no database and knows no runs. It retries single requests only. The node decides what happens to a
// chunk's items, and drops stale, duplicate and unsolicited answers.
//
// # Concurrency
//
// Service, Chunk and Item are safe for concurrent use. So is Stage, except for State and Shared, which belong to the
// handler.
package endpoints
