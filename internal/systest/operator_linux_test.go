package systest

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/tools/faultyservice"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/doctor"
)

// An operator at work, with the real binary.
func TestOperator(t *testing.T) {
	t.Parallel()
	binary := testenv.Program(t, root)
	for name, test := range map[string]func(*testing.T, string){
		"pauses the world":          pausesTheWorld,
		"is told of the threshold":  isToldOfTheThreshold,
		"approves a canary":         approvesACanary,
		"lets a canary pass itself": letsACanaryPass,
		"re-runs a group":           rerunsAGroup,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, binary)
		})
	}
	killedAtCommit(t, binary)
}

// slow is a service whose runs outlive a few commands, of which each may be slow, while their chunks are small.
func slow() faultyservice.Config {
	return faultyservice.Config{Concurrency: 2, Load: &faultyservice.Load{PerChunk: 200 * time.Millisecond}}
}

// hurry has the rest of a run done in large chunks.
func (o *office) hurry(s *server, run workqueue.RunID) {
	o.Helper()
	o.must(s, "run", "set", run.String(), "--chunk", "500")
}

// wantEnd waits for the run's end and checks what became of its items, how often each was executed, and the invariants.
func (o *office) wantEnd(run workqueue.RunID, done, failed int, times func(executions int) bool) {
	o.Helper()
	o.until("the run completes", func() bool {
		return o.number(`SELECT count(*) FROM batchrun WHERE id = $1 AND state = 'completed'`, run) == 1
	})
	d := o.number(`SELECT done FROM batchrun WHERE id = $1`, run)
	if f := o.number(`SELECT failed FROM batchrun WHERE id = $1`, run); d != done || f != failed {
		o.Errorf("%d done and %d failed; want %d and %d", d, f, done, failed)
	}
	seen := o.ledger.Times(uuid.UUID(run), 1)
	if len(seen) != done+failed {
		o.Errorf("%d items were executed of %d", len(seen), done+failed)
	}
	for ordinal, n := range seen {
		if !times(n) {
			o.Errorf("item %d was executed %d times", ordinal, n)
			break
		}
	}
	report, err := doctor.New(o.store).Doctor(context.Background())
	if err != nil {
		o.Fatal(err)
	}
	for _, v := range report.Violations {
		o.Errorf("invariant: %v", v)
	}
}

func once(n int) bool { return n == 1 }

// claimed is how many slices have ever been cut or reissued.
func (o *office) claimed() int {
	o.Helper()
	return o.number(`SELECT count(*) FROM work_slice WHERE state <> 'scheduled'`)
}

// Two nodes, two runs. One command stops both: what is out comes home, or what a transaction was just claiming, and
// nothing else moves until they are resumed.
func pausesTheWorld(t *testing.T, binary string) {
	t.Helper()
	o := newOffice(t, binary, slow())
	one, other := o.serve(), o.serve()
	flags := []string{"--chunk", "20", "--in-flight", "4"}
	runs := []workqueue.RunID{o.begin(one, 2000, flags...), o.begin(other, 2000, flags...)}
	o.until("both are in progress", func() bool { return o.done(runs[0]) > 0 && o.done(runs[1]) > 0 })
	o.must(one, "run", "pause", "--all", "--reason", "the database is being moved")
	var paused time.Time
	if err := o.pool.QueryRow(t.Context(), `SELECT tranche_now()`).Scan(&paused); err != nil {
		t.Fatal(err)
	}
	o.until("claims that had begun are over", func() bool {
		return o.number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND xact_start < $1`,
			paused) == 0
	})
	before := o.claimed()
	o.until("what was out is home", func() bool {
		return o.number(`SELECT count(*) FROM work_slice WHERE state IN ('claimed', 'sent')`) == 0
	})
	for _, run := range runs {
		if o.done(run) == 2000 {
			t.Fatal("a run was over before the pause")
		}
		if said := o.must(other, "run", "show", run.String()); !strings.Contains(said, "paused") ||
			!strings.Contains(said, "the database is being moved") {
			t.Errorf("the run does not say that it is paused, and why:\n%s", said)
		}
	}
	quiet := time.Now()
	o.until("some time is over", func() bool { return time.Since(quiet) > 1500*time.Millisecond })
	if n := o.claimed() - before; n != 0 {
		t.Errorf("%d slices were claimed after the pause", n)
	}
	for _, run := range runs {
		o.hurry(other, run)
	}
	o.must(other, "run", "resume", "--all")
	for _, run := range runs {
		o.wantEnd(run, 2000, 0, once)
	}
	said := o.must(one, "audit")
	for _, word := range []string{"pause", "resume", "the database is being moved"} {
		if !strings.Contains(said, word) {
			t.Errorf("the audit log does not say %q:\n%s", word, said)
		}
	}
}

// A tenth of the items are bad and a hundredth may be: the run stops soon, says why, and is not resumed by mistake.
func isToldOfTheThreshold(t *testing.T, binary string) {
	t.Helper()
	const items, bad = 10_000, 1000
	var ordinals []int
	for i := range bad {
		ordinals = append(ordinals, i*items/bad)
	}
	cfg := slow()
	cfg.Poison = &faultyservice.Poison{Ordinals: ordinals, Way: faultyservice.WayItem}
	o := newOffice(t, binary, cfg)
	s := o.serve()
	// Of the 200 items a second 20 are bad: whoever looks whether they are too many may be late by seconds.
	run := o.begin(s, items, "--chunk", "20", "--in-flight", "8", "--max-failed", "1%")
	o.until("the run is held", func() bool {
		return o.number(`SELECT count(*) FROM batchrun WHERE id = $1 AND hold = 'threshold'`, run) == 1
	})
	o.until("what was out is home", func() bool {
		return o.number(`SELECT count(*) FROM work_slice WHERE state IN ('claimed', 'sent')`) == 0
	})
	failed := o.number(`SELECT sum(bit_count(failed)) FROM work_block WHERE run_id = $1`, run)
	t.Logf("held with %d failed items, where %d are allowed", failed, items/100)
	if failed <= items/100 || failed > items/100+200 {
		t.Errorf("%d items had failed when it was over; the limit was %d", failed, items/100)
	}
	if said := o.must(s, "run", "show", run.String()); !strings.Contains(said, "paused") ||
		!strings.Contains(said, "the limit is 100 (--max-failed 1%)") {
		t.Errorf("the run does not say that it is paused, and why:\n%s", said)
	}
	if r := o.command(s, "", "run", "resume", run.String()); r.code != 7 || !strings.Contains(r.err, "--max-failed") {
		t.Errorf("resume ended with %d: %s%s; want it refused, with what to do", r.code, r.out, r.err)
	}
	o.hurry(s, run)
	o.must(s, "run", "resume", run.String(), "--max-failed", "none")
	o.wantEnd(run, items-bad, bad, once)
}

// A spread sample goes first; the others go when someone says so.
func approvesACanary(t *testing.T, binary string) {
	t.Helper()
	const items, sample = 5000, 100
	o := newOffice(t, binary, faultyservice.Config{})
	s := o.serve()
	run := o.begin(s, items, "--canary", "100")
	o.until("the sample is done", func() bool {
		return o.number(`SELECT count(*) FROM batchrun WHERE id = $1 AND hold = 'canary'`, run) == 1
	})
	o.wantSample(run, items, sample)
	o.must(s, "run", "approve", run.String())
	o.wantEnd(run, items, 0, once)
	if r := o.command(s, "", "run", "approve", run.String()); r.code != 7 {
		t.Errorf("a second approval ended with %d: %s%s", r.code, r.out, r.err)
	}
}

// wantSample checks that the items executed so far are a sample, spread over all of the run.
func (o *office) wantSample(run workqueue.RunID, items, sample int) {
	o.Helper()
	var ordinals []int
	for ordinal := range o.ledger.Times(uuid.UUID(run), 1) {
		ordinals = append(ordinals, ordinal)
	}
	slices.Sort(ordinals)
	if len(ordinals) != sample || ordinals[0] > items/sample || ordinals[len(ordinals)-1] < items-2*items/sample {
		o.Errorf("the sample is %v; want %d items spread over %d", ordinals, sample, items)
	}
	for i := 1; i < len(ordinals); i++ {
		if gap := ordinals[i] - ordinals[i-1]; gap > 2*items/sample {
			o.Errorf("a gap of %d items is in the sample, after item %d", gap, ordinals[i-1])
			return
		}
	}
}

// A sample without failures releases the others by itself; one with failures does not.
func letsACanaryPass(t *testing.T, binary string) {
	t.Helper()
	const items = 2000
	o := newOffice(t, binary, faultyservice.Config{})
	s := o.serve()
	run := o.begin(s, items, "--canary", "50", "--canary-auto-approve")
	o.wantEnd(run, items, 0, once)
	if n := o.number(`SELECT count(*) FROM batchrun WHERE id = $1 AND canary_state = 'passed'`, run); n != 1 {
		t.Error("the canary did not pass")
	}
	var all []int
	for i := range items {
		all = append(all, i)
	}
	poison := &faultyservice.Poison{Ordinals: all, Way: faultyservice.WayItem}
	bad := newOffice(t, binary, faultyservice.Config{Poison: poison})
	s = bad.serve()
	run = bad.begin(s, items, "--canary", "50", "--canary-auto-approve")
	bad.until("the run is held", func() bool {
		return bad.number(`SELECT count(*) FROM batchrun WHERE id = $1 AND hold = 'canary'`, run) == 1
	})
	bad.wantSample(run, items, 50)
	bad.must(s, "run", "cancel", run.String())
}

// What has failed is run again, by the code it failed with, in smaller chunks; the rest is left alone.
func rerunsAGroup(t *testing.T, binary string) {
	t.Helper()
	const items = 3000
	o := newOffice(t, binary, faultyservice.Config{Poison: &faultyservice.Poison{Ordinals: []int{5, 1500, 2999},
		Way: faultyservice.WayItem}})
	s := o.serve()
	run := o.begin(s, items)
	o.wantEnd(run, items-3, 3, once)
	dry := o.must(s, "run", "rerun", run.String(), "--code", faultyservice.CodePoison, "--dry-run")
	if !strings.Contains(dry, "3 items") {
		t.Errorf("the dry run says %q", dry)
	}
	if n := o.number(`SELECT generation FROM batchrun WHERE id = $1`, run); n != 1 {
		t.Errorf("the dry run opened generation %d", n)
	}
	o.must(s, "run", "rerun", run.String(), "--code", faultyservice.CodePoison, "--chunk", "2")
	o.until("the second generation is over", func() bool {
		return o.number(`SELECT count(*) FROM batchrun WHERE id = $1 AND state = 'completed' AND generation = 2`, run) == 1
	})
	want := map[int]int{5: 1, 1500: 1, 2999: 1}
	if again := o.ledger.Times(uuid.UUID(run), 2); !maps.Equal(again, want) {
		t.Errorf("run again were %v; want %v", again, want)
	}
	if n := o.number(`SELECT count(*) FROM run_event WHERE run_id = $1 AND kind = 'completed'`, run); n != 2 {
		t.Errorf("completion was told %d times; want once a generation", n)
	}
}
