// Package natscluster tests the whole product on a NATS cluster of three servers with three replicas: its speed, and
// runs while servers are killed, stopped, restarted and partitioned. It has only tests.
//
// Nodes are processes of the real binary, services those of the Go SDK and of examples/node. Checks are external: a
// ledger of executions, the results, the doctor, and the pace of items.
package natscluster
