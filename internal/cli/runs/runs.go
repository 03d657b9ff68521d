// Package runs has the commands about runs: start, show, follow, change and export them.
package runs

// Commands are the commands about runs.
type Commands struct {
	Start    runStart    `cmd:"" help:"Load items and run a plan, or a single endpoint, over them."`
	Open     runOpen     `cmd:"" help:"Open a run that gets items later, by add, until it is sealed."`
	Add      runAdd      `cmd:"" help:"Add items to an open run; they are read as its plan says, unless flags say otherwise."`
	Seal     runSeal     `cmd:"" help:"Close an open run to new items."`
	List     runList     `cmd:"" help:"List runs, newest first."`
	Show     runShow     `cmd:"" help:"Show everything about a run."`
	Watch    runWatch    `cmd:"" help:"Follow a run until it ends."`
	Forecast runForecast `cmd:"" help:"Forecast a run's end, also with supposed changes; changes nothing."`
	Explain  runExplain  `cmd:"" help:"Explain why a run, or an item of it, is not done: what it waits on, and what comes next."`
	Report   runReport   `cmd:"" help:"Report on a run: counts, times, requests, digests; or compare it with another."`
	Groups   runGroups   `cmd:"" help:"Count items by the value of a field of their payloads."`
	History  runHistory  `cmd:"" help:"List what happened to a run: actions, notes, breakers, deploys, alerts."`
	Note     runNote     `cmd:"" help:"Add a note to a run, shown to all."`
	Errors   runErrors   `cmd:"" help:"List what failed, in groups by error code and message."`
	Items    runItems    `cmd:"" help:"List items in order, with the state of each."`
	Requests runRequests `cmd:"" help:"List in-flight requests and who holds each."`
	Item     runItem     `cmd:"" help:"Show an item: its state, result or error, and every attempt."`
	Export   runExport   `cmd:"" help:"Write all items with their outcomes."`
	Rerun    runRerun    `cmd:"" help:"Rerun items."`
	Reset    runReset    `cmd:"" help:"Discard a step's results and recompute them; what depends on them follows."`
	Correct  runCorrect  `cmd:"" help:"Correct the data of items, read as the plan says unless flags say otherwise, and rerun them."`
	Accept   runAccept   `cmd:"" help:"Accept failures, with a reason: they stay failed, and health ignores them."`
	Set      runSet      `cmd:"" help:"Change settings of a run while it runs."`
	Pause    runPause    `cmd:"" help:"Pause a run, or all runs: nothing more is sent until it is resumed."`
	Resume   runResume   `cmd:"" help:"Resume a paused run, or all of them; or one that was cancelled."`
	Approve  runApprove  `cmd:"" help:"Release items held by a canary, or a step that waits for approval."`
	Cancel   runCancel   `cmd:"" help:"Cancel a run, or all runs; what is recorded stays. Resume continues a cancelled run."`
	Delete   runDelete   `cmd:"" help:"Delete a finished run, with all its data except the audit log."`
}

type runArg struct {
	Ref string `json:"-" arg:"" name:"run" help:"ID, part of an ID, name, or last."`
}
