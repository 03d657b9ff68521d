// Package natsfaults holds tests of runs whose JetStream does not keep its word: its disk is full for a while, or what
// it has acknowledged is gone. It has no code of its own.
package natsfaults
