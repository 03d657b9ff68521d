// Package tracing exports a node's spans, and what is gathered for Prometheus, by OTLP over HTTP.
//
// A node records a span for each slice that it publishes, which is the root of a trace and travels with the request,
// and a span for each message of a reply that it records, in the trace that the message carries. What happens in
// between is for services to record, with package endpoints/oteltrace or in their own way.
//
// # Guarantees
//
// A collector that is slow or away costs spans and a line in the log, never work: spans wait in a bounded queue in
// memory and are dropped when it is full. Spans carry ids, names and counts, never keys or payloads.
//
// # Not its job
//
// It makes no metrics, which is for package metrics, exports no logs, and sets nothing global.
//
// # Concurrency
//
// A Tracing is safe for concurrent use.
package tracing
