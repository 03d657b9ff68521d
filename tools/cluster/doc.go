// Package cluster is what make cluster shows: three machines of Tranche as docs/operate/deploy.md has them, here three
// addresses of the loopback, broken one thing after the other under a run.
//
// It reads the commands and files of that page and uses them as they stand, but for addresses, paths and passwords:
// nats-servers with the accounts that tranche nats config writes, a PostgreSQL primary with a synchronous standby,
// three nodes, two instances of each of two services, and Prometheus where it is installed.
//
// Guarantees: [Run] returns nil only when each fault came while the run was under way, the run went on after it, every
// item is done with a result that a service noted in its ledger before it answered, and tranche doctor finds nothing.
// All that it starts has ended when it returns, and on Linux, which it needs, also when it is killed.
//
// Not its job: to watch servers and promote standbys. It promotes by hand, as whoever does that for real would.
package main
