// Package access knows who may do what: roles, tokens and web sessions, and who is behind a request.
//
// Guarantees: a secret has 160 random bits, is shown once and kept as its SHA-256; what is revoked, or has expired,
// does nothing more [RevocationTime] later, on every node, and requests that are under way by then have their context
// cancelled; whoever cannot be checked for that long is refused. Logins are throttled, for each address and in all.
//
// Not its job: HTTP's answers, cookies and routes, which are package api's, and SQL, which is package workqueue's.
//
// Concurrency: everything here is safe for concurrent use.
package access
