// Package api is the HTTP API of a node: start runs, look at them, run items again, export; show, requeue and drop dead
// letters; show what is in quarantine; see and set endpoints.
//
// Guarantees: every error is application/problem+json whose detail names the input, the place and the remedy; no GET
// changes anything; requests from other origins and for unknown hosts are refused; bodies are bounded, but for items,
// which stream in and out with constant memory. An answer that says no repeats little of what was asked. A caller is
// given up when it is silent, never because the work takes long. What is unavailable, PostgreSQL or NATS, or used up,
// is named with status 503. An export that breaks off ends the connection without its proper end, so that a client
// cannot take it for whole.
//
// Who may do what is said by each operation, and a route that does not say is closed. Without [Config.Access] everybody
// may do everything, and [Listen] takes loopback addresses only.
//
// Concurrency: a [Server] serves any number of requests at once; the nodes behind one database are all equal.
package api
