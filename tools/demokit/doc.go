// Package story is what demonstrations are told with: a [Story] on a person's screen, a [Shell] for the commands that
// the person would type, and each [Child], a process that runs meanwhile, in a [Dir] of their own.
//
// Guarantees: children have ended when their Stop returns, and on Linux also when the program is killed; a directory
// belongs to one story at a time. Concurrency: a Child and a Shell may be used at once, a Story by one goroutine.
package demokit
