// Package spool keeps inputs that have to be read more than once, or not from front to back: in memory while they are
// small, and else in a file without a name, which is gone with the process.
//
// A Room bounds what all of them take of the disk, and what those of one user do. It knows nothing of what is in them.
package spool
