// Package streams has the tests of the streams' settings, and of accounts, on a cluster of NATS servers.
package streams
