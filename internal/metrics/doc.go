// Package metrics measures a node for Prometheus: what the node does, counted where it happens, and what it sees of the
// whole, read when somebody asks.
//
// # Guarantees
//
// No label holds a run's id, an item's key, or a message. Each label has a bounded number of values: beyond
// [Config.Endpoints] endpoints and as many collectors the rest is summed under [Other], and a name that only a message
// from outside claims gets no value of its own.
//
// What is true of the database, and not of one node, is told by the node alone that leads, so that a sum over nodes is
// right. It is read at most every [Config.Every], however many ask, within a few seconds; while it cannot be read the
// rest is told all the same.
//
// # Not its job
//
// It judges nothing: rules stand in deploy/prometheus. Package tracing brings the same to receivers of OTLP.
//
// # Concurrency
//
// A Metrics is safe for concurrent use.
package metrics
