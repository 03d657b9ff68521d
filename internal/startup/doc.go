// Package startup is what a server waits for when it starts: a PostgreSQL that comes up, a NATS that does not answer
// yet, streams that cannot be made. It says in words what is missing, ends a start that nothing but a person can mend,
// with the remedy, and remembers the last trouble for those who ask why nothing goes on.
//
// Flags and wiring are cmd/tranche's; its words name flags of serve. It reads from the store what is set for the
// streams and, where they have never been, takes it back.
package startup
