// Package embedded holds what tranche runs by itself when it is given no URLs: a private PostgreSQL cluster, made from
// the binaries installed on the machine, and a NATS server with JetStream in this process.
//
// [StartPostgres] makes the cluster on its first call and starts it on every later one. What it promises:
//
//   - One process at a time owns a data directory; a second one gets a [LockedError].
//   - A kill -9 of this process at any moment, in the middle of initdb too, is repaired by the next start. A server
//     left over from it is shut down cleanly first.
//   - Data of another major version is never touched; see [VersionError].
//   - Commits are durable, unless the caller's settings say otherwise.
//   - A server that dies is started again until Stop is called.
//   - It works as root, by running the server as another user.
//
// [StartNATS] starts the NATS server and keeps it usable: a JetStream store that is deleted under it is noticed, and
// the server comes back with an empty one at the same address. JetStream may lose what it has acknowledged; nothing in
// Tranche relies on it.
//
// It is not the package's job to set up, tune or watch servers that somebody else runs. Its types are safe for
// concurrent use. On Windows only NATS is started; [StartPostgres] is
// [ErrNotOnWindows] there.
package embedded
