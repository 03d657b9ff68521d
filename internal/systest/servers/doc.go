// Package servers tests runs whose PostgreSQL or NATS fails: a full disk, lost acknowledged messages, a standby that
// lagged, a restored backup; and runs that move to other servers, and a growing NATS cluster. Nodes and services are
// in the test process. It has only tests.
package servers
