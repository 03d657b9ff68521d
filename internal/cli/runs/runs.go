// Package runs has the commands about runs: it starts and shows them, follows them, changes them and their items, and
// exports their results.
package runs

// Commands are the commands about runs.
type Commands struct {
	Start   runStart   `cmd:"" help:"Load items and run a plan, or a single endpoint, over them."`
	Open    runOpen    `cmd:"" help:"Open a run that gets items later, by add, until it is sealed."`
	Add     runAdd     `cmd:"" help:"Add items to an open run; they are read as its plan says, unless flags say otherwise."`
	Seal    runSeal    `cmd:"" help:"End the adding of items to an open run."`
	List    runList    `cmd:"" help:"List runs, newest first."`
	Show    runShow    `cmd:"" help:"Everything about a run."`
	Watch   runWatch   `cmd:"" help:"Follow a run until it ends."`
	Explain runExplain `cmd:"" help:"Why a run, or an item of it, is not done: whose turn it is, and what comes next."`
	Report  runReport  `cmd:"" help:"The account of a run: counts, times, requests, digests; compared with another."`
	Groups  runGroups  `cmd:"" help:"Items by the value of a field of their payloads."`
	History runHistory `cmd:"" help:"What happened to a run: actions, notes, breakers, deploys, alerts."`
	Note    runNote    `cmd:"" help:"Write a note of a run, for all who look at it."`
	Errors  runErrors  `cmd:"" help:"What failed, in groups by error code and message."`
	Items   runItems   `cmd:"" help:"List items in their order, with where each is."`
	Slices  runSlices  `cmd:"" help:"List requests that are under way, and who holds them."`
	Item    runItem    `cmd:"" help:"One item: its state, result or error, and every attempt."`
	Export  runExport  `cmd:"" help:"Write all items with their outcomes."`
	Rerun   runRerun   `cmd:"" help:"Run items again."`
	Reset   runReset   `cmd:"" help:"Take the parts of a step back, to be made again; what depends on them follows."`
	Correct runCorrect `cmd:"" help:"Give items other data, read as the plan says unless flags say otherwise, and have them done again."`
	Accept  runAccept  `cmd:"" help:"Accept failures, with a reason: they stay failed, and the health is quiet about them."`
	Set     runSet     `cmd:"" help:"Change settings of a run while it runs."`
	Pause   runPause   `cmd:"" help:"Send nothing more of a run, or of all runs, until it is resumed."`
	Resume  runResume  `cmd:"" help:"Go on with a paused run, or all of them; or with one that was cancelled."`
	Approve runApprove `cmd:"" help:"Let the items go that a canary held back."`
	Cancel  runCancel  `cmd:"" help:"Stop a run, or all runs, for good; what is recorded stays."`
	Delete  runDelete  `cmd:"" help:"Delete a finished run, with all that there is of it but the audit log."`
}

// runArg is the argument of commands about one run.
type runArg struct {
	Ref string `arg:"" name:"run" help:"An id, a piece of one, a name, or last."`
}
