// Package bitfield holds the sets of bits in which Tranche keeps the state of every item, and the ids that name one
// item of a tracked batch.
//
// A block is 8192 consecutive items; a [Set] is one bit for each of them. Everything the system does to items (claim a
// chunk, record a reply, release what was lost) is a union, an intersection or a difference of such sets, done by
// PostgreSQL on bit strings and here on the same bytes.
//
// The package uses the standard library only and does no input or output. Nothing in it is safe for concurrent use;
// values may be copied freely.
package bitfield
