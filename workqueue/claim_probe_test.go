package workqueue_test

import (
	"testing"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
)

// probeDue makes the endpoint one that is down and may be probed.
func (b *bench) probeDue() {
	b.Helper()
	b.exec(`UPDATE endpoint_pace SET breaker = 'open', breaker_since = clock_timestamp(), probe_at = clock_timestamp()
		WHERE endpoint = $1`, endpoint)
}

func (b *bench) wantProbe(run workqueue.RunID) workqueue.Slice {
	b.Helper()
	if steps := b.runnable(); len(steps) == 0 {
		b.Error("nothing is to be claimed although a probe is due")
	}
	claimed := b.wantClaim(run, 1, dispatch.BoundEndpoint)
	if len(claimed) != 1 {
		b.FailNow()
	}
	probe := claimed[0]
	if probe.Mask.Count() != 1 || probe.Cause != workqueue.CauseProbe || probe.Endpoint != endpoint {
		b.Errorf("the probe has %d items, %+v", probe.Mask.Count(), probe.Cause)
	}
	if n := b.number(`SELECT count(*) FROM endpoint_pace
		WHERE probe_slice = $1 AND probe_at >= changed_at + interval '900 ms'`, probe.ID); n != 1 {
		b.Error("the endpoint does not know the probe")
	}
	if steps := b.runnable(); len(steps) != 0 {
		b.Errorf("beside the probe %+v", steps)
	}
	b.check()
	return probe
}

// At an endpoint that is down one item goes out at a time, when a probe is due.
func TestProbeIsCutFromReadyItems(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, other := b.load(chunked(10), 100), b.load(chunked(10), 100)
	b.exec(`UPDATE endpoint_pace SET breaker = 'open', breaker_since = clock_timestamp(),
		probe_at = clock_timestamp() + interval '1 minute'`)
	if steps := b.runnable(); len(steps) != 0 {
		t.Errorf("%+v although the endpoint is down", steps)
	}
	if claimed := b.ask(run); len(claimed.Slices) != 0 || claimed.Wait < 50*time.Second {
		t.Errorf("%d slices, wait %s", len(claimed.Slices), claimed.Wait)
	}
	b.probeDue()
	probe := b.wantProbe(run)
	if probe.Attempt != 1 || probe.Failures != 0 || probe.Root != probe.ID {
		t.Errorf("the probe is %+v", probe)
	}
	b.probeDue() // it is out still
	b.wantClaim(run, 0, dispatch.BoundEndpoint)
	b.wantClaim(other, 0, dispatch.BoundEndpoint)
	b.record(whole(probe))
	b.wantProbe(other)
	b.exec(`UPDATE endpoint_pace SET breaker = 'closed'`)
	b.finish(run)
	b.wantState(run, "completed", 1)
	b.check()
}

// With nothing ready a probe is carved from a slice that waits, due or not; a slice of one item goes as it is.
func TestProbeIsCarvedFromAScheduledSlice(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := chunked(3)
	req.Steps[0].RetryBackoff = time.Hour
	run := b.load(req, 3)
	cut := b.one(run)
	b.record(again(cut, 3))
	for left := 2; left > 0; left-- {
		b.probeDue()
		probe := b.wantProbe(run)
		if probe.Attempt != 2 || probe.Failures != 1 || probe.Root != cut.ID || probe.ID == cut.ID {
			t.Errorf("the probe is %+v", probe)
		}
		b.record(whole(probe))
		b.wantTally(run, tally{live: left, done: 3 - left})
	}
	b.probeDue()
	b.record(whole(b.wantProbe(run)))
	b.wantState(run, "completed", 1)
	b.check()
}

// What became of a probe's item before is found through its parent, which must not be a slice that vanishes when it is
// put together with others.
func TestProbeOutlivesTheSliceItWasCarvedFrom(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(chunked(4), 8)
	for _, s := range b.claim(run, plenty) {
		b.record(again(s, 2))
	}
	b.probeDue()
	probe := b.wantProbe(run)
	b.exec(`UPDATE endpoint_pace SET breaker = 'closed', probe_at = NULL`)
	if merged := b.claim(run, plenty); len(merged) != 1 || merged[0].Mask.Count() != 3 {
		t.Fatalf("claimed %+v: %s", merged, b.dump(run))
	}
	if n := b.number(`SELECT count(*) FROM work_slice s JOIN work_slice p ON p.id = s.parent AND p.state = 'recorded'
		WHERE s.id = $1`, probe.ID); n != 1 {
		t.Error("the probe's parent is gone")
	}
	b.check()
}

// The limits hold for probes too.
func TestProbeKeepsToTheBudget(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.budget(1)
	run := b.load(chunked(10), 100)
	out := b.one(run)
	b.probeDue()
	b.wantClaim(run, 0, dispatch.BoundEndpoint)
	b.record(whole(out))
	b.wantProbe(run)
}

func TestHeldRunsAreNotClaimedOf(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(chunked(10), 100)
	b.exec(`UPDATE batchrun SET hold = 'operator', held_at = clock_timestamp()`)
	b.wantClaim(run, 0, dispatch.BoundStep)
	if steps := b.runnable(); len(steps) != 0 {
		t.Errorf("%+v although the run is held", steps)
	}
	b.exec(`UPDATE batchrun SET hold = NULL, held_at = NULL`)
	b.wantClaim(run, 10, dispatch.BoundNone)
}
