// Package servers has tests of runs whose PostgreSQL or NATS does not keep its word: a disk that is full for a while,
// messages that are gone although they were acknowledged, a standby that had fallen behind, a backup that is put back;
// and of runs that move to other servers, and of a NATS cluster that grows. Nodes and services are in the process of
// the test. It has no code of its own.
package servers
