// Package endpoints is Tranche's wire protocol and the SDK for services that speak it. docs/protocol.md describes the
// same protocol for other languages.
//
// A service registers handlers on a [Service] with [HandleList] (one call for a whole chunk) or [HandleEach] (one call
// an item) and then runs it:
//
//	svc, err := endpoints.New(nc, endpoints.Config{Name: "statements", Version: "1.0.0"})
//	err = endpoints.HandleEach(svc, "statement", makeStatement, endpoints.Concurrency(16))
//	err = svc.Run(ctx)
//
// Whoever needs an answer now, such as an HTTP handler, asks an endpoint with [Call] or [CallList] and waits.
//
// [HandleFlow] serves an endpoint in stages, each of which may ask other endpoints; the next one begins, on any instance,
// when their answers are there.
//
// A node uses the other half: [RequestBuilder], [ParseReply], [EnsureStreams], [EnsureConsumer], [EnsureRecorder] and
// [Discover].
//
// # Guarantees
//
// Execution is at least once: a chunk is acknowledged only after JetStream has acknowledged every message of its reply,
// so a service that dies in between does the chunk again. A handler that must not do its work twice uses
// [ItemInfo.IdempotencyKey]. An item that a handler forgets is left out of the reply, which means "unknown: try again";
// it is never taken for a success. A panic or an error costs an item or a chunk, not the service. When NATS restarts,
// or its streams vanish, a running service finds its way back by itself.
//
// ParseReply and the request decoder take bytes from strangers: they never panic, they bound depth, count and
// decompressed size, and they say what was wrong with a [MalformedError].
//
// # Not its job
//
// The package knows no database, no runs and no retries. It reports what a service said; whether a slot was asked for,
// is stale or comes a second time is for the node to decide.
//
// # Concurrency
//
// A Service, a Chunk and its Items are safe for concurrent use. A RequestBuilder is not.
package endpoints
