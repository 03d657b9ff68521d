// Package endpoints is the SDK for services. docs/services.md is a guide to it; docs/protocol.md describes the protocol
// that it speaks for other languages.
//
// # What a service needs
//
//	begin      Connect, New, Config, Service (Run, Ready, Stats)
//	handle     HandleList: Chunk, Item       HandleEach: ItemOf, ItemInfo
//	           HandleFlow: Stage, StageItem, To, Target, None
//	answer     Item.Reply, Binary; Fail and Retry, for an error of the handler's own choice; PartOf
//	settings   Concurrency, Timeout, Wrap, and for flows Revision
//	ask        Call, CallList, Direct, SlotError
//
// The rest is for special cases: limits, other options of calls, errors to tell apart, [Wrapper]s, traces, and
// [NewProducer] for collectors.
//
// A service registers handlers on a [Service] and then runs it:
//
//	svc, err := endpoints.New(nc, endpoints.Config{Name: "statements", Version: "1.0.0"})
//	err = endpoints.HandleEach(svc, "statement", makeStatement, endpoints.Concurrency(16))
//	err = svc.Run(ctx)
//
// [HandleList] has one call for a whole chunk, [HandleEach] one for an item. [HandleFlow] serves an endpoint in stages,
// each of which may ask other endpoints; the next one begins, on any instance, when their answers are there.
//
// Whoever needs an answer now, such as an HTTP handler, asks an endpoint with [Call] or [CallList] and waits.
//
// A [Wrapper] is called around handlers: for transactions (package pginbox), spans (package oteltrace), counters.
// Package endpointstest runs a service in a unit test. This package imports none of them.
//
// What is said is in package wire, and what is wanted of JetStream in package stream: nodes use those two, and services
// rarely.
//
// # Guarantees
//
// Execution is at least once: a chunk is acknowledged only after JetStream has acknowledged every message of its reply,
// so a service that dies in between does the chunk again. So it is with each stage of a flow: what it sends has ids
// that follow from the request, and a stage that is repeated repeats them. A handler that must not do its work twice
// uses [ItemInfo.IdempotencyKey]. An item that a handler forgets is left out of the reply, which means "unknown: try
// again"; it is never taken for a success. A panic or an error costs an item or a chunk, not the service.
//
// A request that was delivered again and again is run alone in its process, and given up when the process does not
// survive that: it goes back to whoever asked as [wire.CodeDeliveries]. A request of [wire.ModeSingle] whose error its
// handler did not decide is kept as a [wire.DeadLetter]. When NATS restarts, or its streams vanish, a running service
// finds its way back by itself; so it does when a permission that was missing ([PermissionError]) is granted.
//
// What comes from strangers (requests, replies, states of flows, dead letters) is read with bounds on depth, count and
// decompressed size, and never panics the reader. A [wire.MalformedError] says what is wrong with a message.
//
// # Not its job
//
// The package knows no database, and no runs. It tries a single request again, and nothing else: what becomes of the
// items of a chunk, and whether a slot was asked for, is stale or comes a second time, is for the node to decide.
//
// # Concurrency
//
// A Service, a Chunk and its Items are safe for concurrent use, and so is a Stage but for its states, which are the
// handler's own.
package endpoints
