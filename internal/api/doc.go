// Package api is the HTTP API of a node.
//
// Guarantees: every error is application/problem+json whose detail names the input, the place and the remedy. No GET
// changes anything. Requests from other origins and for unknown hosts are refused. Bodies are bounded, except items,
// which stream in and out with constant memory; error answers repeat little of the request. A caller is dropped when
// silent, never because the work takes long. If PostgreSQL or NATS is unavailable or exhausted, status 503 names it.
// An interrupted export ends the connection abnormally, so that no client takes it for complete.
//
// Each operation states the role it requires; a route that does not is closed. Without [Config.Access] every caller
// may do everything, and [Listen] accepts loopback addresses only.
//
// A [Server] is safe for concurrent use. All nodes on one database are equal.
package api
