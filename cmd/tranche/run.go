package main

import (
	"github.com/tranchehq/tranche/internal/cli/runs"
)

// runCommands are the commands about runs.
type runCommands struct {
	Start   runs.Start   `cmd:"" help:"Load items and run a plan, or a single endpoint, over them."`
	Open    runs.Open    `cmd:"" help:"Open a run that gets items later, by add, until it is sealed."`
	Add     runs.Add     `cmd:"" help:"Add items to an open run."`
	Seal    runs.Seal    `cmd:"" help:"End the adding of items to an open run."`
	List    runs.List    `cmd:"" help:"List runs, newest first."`
	Show    runs.Show    `cmd:"" help:"Everything about a run."`
	Watch   runs.Watch   `cmd:"" help:"Follow a run until it ends."`
	Explain runs.Explain `cmd:"" help:"Why a run, or an item of it, is not done: whose turn it is, and what comes next."`
	Report  runs.Report  `cmd:"" help:"The account of a run: counts, times, requests, digests; compared with another."`
	Groups  runs.Groups  `cmd:"" help:"Items by the value of a field of their payloads."`
	History runs.History `cmd:"" help:"What happened to a run: actions, notes, breakers, deploys, alerts."`
	Note    runs.Note    `cmd:"" help:"Write a note of a run, for all who look at it."`
	Errors  runs.Errors  `cmd:"" help:"What failed, in groups by error code and message."`
	Items   runs.Items   `cmd:"" help:"List items in their order, with where each is."`
	Slices  runs.Slices  `cmd:"" help:"List requests that are under way, and who holds them."`
	Item    runs.Item    `cmd:"" help:"One item: its state, result or error, and every attempt."`
	Export  runs.Export  `cmd:"" help:"Write all items with their outcomes."`
	Rerun   runs.Rerun   `cmd:"" help:"Run items again."`
	Reset   runs.Reset   `cmd:"" help:"Take the parts of a step back, to be made again; what depends on them follows."`
	Correct runs.Correct `cmd:"" help:"Give items other data, and have them done again."`
	Accept  runs.Accept  `cmd:"" help:"Accept failures, with a reason: they stay failed, and the health is quiet about them."`
	Set     runs.Set     `cmd:"" help:"Change settings of a run while it runs."`
	Pause   runs.Pause   `cmd:"" help:"Send nothing more of a run, or of all runs, until it is resumed."`
	Resume  runs.Resume  `cmd:"" help:"Go on with a paused run, or all of them; or with one that was cancelled."`
	Approve runs.Approve `cmd:"" help:"Let the items go that a canary held back."`
	Cancel  runs.Cancel  `cmd:"" help:"Stop a run, or all runs, for good; what is recorded stays."`
	Delete  runs.Delete  `cmd:"" help:"Delete a finished run, with all that there is of it but the audit log."`
}
