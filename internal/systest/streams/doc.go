// Package streams has the tests of the streams' settings on a cluster of NATS servers.
package streams
