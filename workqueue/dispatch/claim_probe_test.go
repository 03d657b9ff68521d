package dispatch_test

import (
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
)

// probeDue makes the endpoint one that is down and may be probed.
func (b *bench) probeDue() {
	b.Helper()
	b.Exec(`UPDATE endpoint_pace SET breaker = 'open', breaker_since = tranche_now(), probe_at = tranche_now()
		WHERE endpoint = $1`, storetest.Endpoint)
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
	if probe.Mask.Count() != 1 || probe.Cause != workqueue.CauseProbe || probe.Endpoint != storetest.Endpoint {
		b.Errorf("the probe has %d items, %+v", probe.Mask.Count(), probe.Cause)
	}
	if n := b.Number(`SELECT count(*) FROM endpoint_pace
		WHERE probe_slice = $1 AND probe_at >= changed_at + interval '900 ms'`, probe.ID); n != 1 {
		b.Error("the endpoint does not know the probe")
	}
	if steps := b.runnable(); len(steps) != 0 {
		b.Errorf("beside the probe %+v", steps)
	}
	b.Check()
	return probe
}

// At an endpoint that is down one item goes out at a time, when a probe is due.
func TestProbeIsCutFromReadyItems(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, other := b.Load(storetest.Chunked(10), 100), b.Load(storetest.Chunked(10), 100)
	b.Exec(`UPDATE endpoint_pace SET breaker = 'open', breaker_since = tranche_now(),
		probe_at = tranche_now() + interval '1 hour'`)
	if steps := b.runnable(); len(steps) != 0 {
		t.Errorf("%+v although the endpoint is down", steps)
	}
	if claimed := b.ask(run); len(claimed.Slices) != 0 || claimed.Wait < 50*time.Minute {
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
	b.Record(storetest.Whole(probe))
	b.wantProbe(other)
	b.Exec(`UPDATE endpoint_pace SET breaker = 'closed'`)
	b.Finish(run)
	b.WantState(run, "completed", 1)
	b.Check()
}

// With nothing ready a probe is carved from a slice that waits, due or not; a slice of one item goes as it is.
func TestProbeIsCarvedFromAScheduledSlice(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Chunked(3)
	req.Steps[0].RetryBackoff = time.Hour
	run := b.Load(req, 3)
	cut := b.One(run)
	b.Record(again(cut, 3))
	for left := 2; left > 0; left-- {
		b.probeDue()
		probe := b.wantProbe(run)
		if probe.Attempt != 2 || probe.Failures != 1 || probe.Root != cut.ID || probe.ID == cut.ID {
			t.Errorf("the probe is %+v", probe)
		}
		b.Record(storetest.Whole(probe))
		b.WantTally(run, storetest.Tally{Live: left, Done: 3 - left})
	}
	b.probeDue()
	b.Record(storetest.Whole(b.wantProbe(run)))
	b.WantState(run, "completed", 1)
	b.Check()
}

// What became of a probe's item before is found through its parent, which must not be a slice that vanishes when it is
// put together with others.
func TestProbeOutlivesTheSliceItWasCarvedFrom(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(4), 8)
	for _, s := range b.Claim(run, storetest.Plenty) {
		b.Record(again(s, 2))
	}
	b.probeDue()
	probe := b.wantProbe(run)
	b.Exec(`UPDATE endpoint_pace SET breaker = 'closed', probe_at = NULL`)
	if merged := b.Claim(run, storetest.Plenty); len(merged) != 1 || merged[0].Mask.Count() != 3 {
		t.Fatalf("claimed %+v: %s", merged, b.Dump(run))
	}
	if n := b.Number(`SELECT count(*) FROM work_slice s JOIN work_slice p ON p.id = s.parent AND p.state = 'recorded'
		WHERE s.id = $1`, probe.ID); n != 1 {
		t.Error("the probe's parent is gone")
	}
	b.Check()
}

// The limits hold for probes too.
func TestProbeKeepsToTheBudget(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.budget(1)
	run := b.Load(storetest.Chunked(10), 100)
	out := b.One(run)
	b.probeDue()
	b.wantClaim(run, 0, dispatch.BoundEndpoint)
	b.Record(storetest.Whole(out))
	b.wantProbe(run)
}
