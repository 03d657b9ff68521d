// Package runs has the commands about runs: it starts and shows them, follows them, changes them and their items, and
// exports their results.
package runs
