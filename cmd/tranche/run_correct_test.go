package main

// correcting corrects an item of the run "it", which has completed, and sees what it was.
func (b *bench) correcting() {
	b.Helper()
	const file = "id,fixed\n1,yes\n"
	correct := []string{"run", "correct", "it", "--items", "-", "--reason", "it was wrong"}
	b.want(b.pipe(file, append(correct, "--dry-run")...), 0, "dry run", "1 item corrected", "nothing was changed")
	b.want(b.pipe(file, append(correct, "--wait")...), 0, "has 1 item corrected, as generation 3", "3 of 3 items done")
	b.want(b.pipe(file, correct...), 1, "just as given")
	b.want(b.pipe("id\nnobody\n", correct...), 1, `"nobody"`)
	b.want(b.tranche("run", "item", "it", "1"), 0, `"fixed":"yes"`, "until generation 3", "it was wrong")
	b.want(b.tranche("run", "report", "it"), 0, "corrected: 1 item; 1 results made of corrected data", "it was wrong")
	b.want(b.tranche("run", "rerun", "it", "--corrected", "--dry-run"), 0, "would run 1 item again", "\n  1\n")
	b.want(b.tranche("run", "reset", "it", "--where", `$.fixed == "yes"`, "--since", "1h", "--dry-run"), 0,
		"reset 1 item", "\n  1\n")
	b.want(b.tranche("run", "accept", "it", "--service", "nobody@1", "--reason", "r"), 1, "nothing to accept")
	b.want(b.tranche("run", "rerun", "it", "--where", "$.x = 1"), 1, "no path of SQL/JSON")
	b.want(b.tranche("run", "rerun", "it"), 2, "--failed, --key K", "--where")
	b.want(b.tranche("run", "start", "--from", "it"), 1, "no items in these states")
	b.want(b.tranche("run", "start", "--state", "failed", "--items", "x", "--endpoint", "echo"), 2, "give --from RUN too")
	b.want(b.tranche("run", "start", "--from", "other", "--state", "cancelled", "--name", "more"), 0,
		"started: plan ", "3 items")
	b.want(b.tranche("run", "show", "more"), 0, "carries on")
	b.want(b.tranche("run", "watch", "more"), 0, "3 of 3 items done")
	b.want(b.tranche("run", "export", "it", "--corrected", "--format", "csv"), 0, "\n1,done,")
}
