// Package scale calculates how many items a time go through Tranche on machines that are not here, and what is used up
// first. It takes what an item costs, as measured ([Costs]), and machines ([Site]), and simulates the way of the chunks
// of a [Job] through them: intake, claim, request, service, recording, each with its round trips, processor time, bytes
// and commits, and with the limits of a node (two publishers, two recorders, sixteen replies a commit).
//
// It knows what wears machines down and who waits for whom, and nothing of what goes wrong: no failures, no vacuum, no
// checkpoint that comes at a bad time. The part scale of the bench compares it with runs on this machine.
//
// A simulation runs on one goroutine; the same seed gives the same result.
package scale
