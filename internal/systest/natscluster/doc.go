// Package natscluster holds tests of the whole product on a NATS cluster of three servers, with streams of three
// replicas: how fast it is, and what becomes of runs while servers are killed, stopped, restarted and cut off from one
// another. It has no code of its own.
//
// Nodes are processes of the real binary, services those of the Go SDK and of examples/node. What must hold is checked
// from outside: by a ledger of executions, the results, the doctor, and a watch over the pace at which items come.
package natscluster
