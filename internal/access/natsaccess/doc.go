// Package natsaccess says who may say what on NATS, as the configuration of a server: an account for the nodes, and one
// for each service and each kind of caller, which imports exactly its own subjects.
//
// Permissions alone do not do it. A server checks the subject that a client publishes to and not the reply subject, and
// JetStream, services and nodes answer there with their own rights. Between accounts a reply subject is mapped back
// into the account of whoever asked: it leads nowhere but home.
//
// The same [System] is written as the file of a server, with passwords or nkeys, and as JWTs of an operator. It
// holds no secrets; those are in [Keys]. The package talks to no server. Nothing here is safe for concurrent use.
package natsaccess
