package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/orchestrator/client"
)

const nightly = `name: nightly
cron: "30 2 * * *"
zone: Europe/Berlin
plan: year-end
items: {file: "{due.date}.csv"}
window: {not_before: "02:00", done_by: "06:00"}
`

// A run that could not be started is told of by the exit code, whatever the output.
func TestRunNowThatFails(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want(b.pipe(nightly+"start_attempts: 1\n", "schedule", "apply", "-"), 0, "version 1")
	b.want(b.tranche("schedule", "run-now", "nightly", "--wait", "2m"), 1, "the run failed", "year-end")
	r := b.tranche("--json", "schedule", "run-now", "nightly", "--wait", "2m")
	var fire client.Fire
	if err := json.Unmarshal([]byte(r.out), &fire); r.code != 1 || err != nil || fire.State != "failed" || r.err != "" {
		t.Errorf("exit %d, %v: %s%s", r.code, err, r.out, r.err)
	}
}

func TestSchedules(t *testing.T) {
	t.Parallel()
	b := setup(t)
	file := written(t, "n.yaml", nightly)
	b.want(b.tranche("schedule", "list"), 0, "no schedules on record", "tranche schedule apply")
	b.want(b.tranche("schedule", "preview", file, "--count", "2"), 0, "DUE IN Europe/Berlin", " 02:30 +0", "DONE BY (UTC)",
		"year-end is not on record")
	b.want(b.tranche("schedule", "apply", file), 0, "schedule nightly is on record, version 1; due next ",
		"--schedule-files DIR")
	b.want(b.tranche("schedule", "apply", file), 0, "unchanged: version 1")
	b.want(b.pipe(strings.Replace(nightly, "30 2", "0 3", 1), "schedule", "apply", "-"), 0,
		"version 2 now, after version 1")
	b.want(b.tranche("schedule", "list"), 0, "0 3 * * *", "Europe/Berlin", "year-end", "active")
	b.want(b.tranche("schedule", "run-now", "nightly", "--wait", "0s"), 0, "it is due", "tranche schedule fires nightly")
	b.want(b.tranche("schedule", "pause", "nightly"), 0, "nightly is paused", "1 that are due wait for it")
	b.want(b.tranche("schedule", "fires", "nightly"), 0, "DUE", "now")
	b.want(b.tranche("schedule", "resume", "nightly"), 0, "nightly goes on; due next ")
	r := b.tranche("--json", "schedule", "delete", "nightly")
	if r.code != 0 || !json.Valid([]byte(r.out)) {
		t.Errorf("not one JSON document: %s%s", r.out, r.err)
	}
	b.want(b.tranche("schedule", "show", "nightly"), 1, "was deleted", "tranche schedule list")
	bad := written(t, "bad.yaml", strings.Replace(nightly, "30 2", "30 25", 1))
	b.want(b.tranche("schedule", "apply", bad), 1, bad, ":2:7: cron", `cron: "30 25`)
	b.want(b.tranche("schedule", "preview", "no-such.yaml"), 2, "no-such.yaml", "no such file")
}
