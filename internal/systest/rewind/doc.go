// Package rewind holds tests of databases that go back in time: a standby that had fallen behind takes over, or a
// backup is put back, under nodes that live through it and under ones that are started afterwards; and of runs that
// move to another PostgreSQL, or another NATS. It has no code of its own.
package rewind
