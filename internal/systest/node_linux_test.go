package systest

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/fault"
)

// A node is killed after a commit that no one was told of, and another comes after it. Package orchestrator crashes
// nodes everywhere else, without a process (TestANodeCrashesAnywhere): this shows that the two agree.
func TestNodeIsKilled(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.items = 10_000 // chunks for more than three transactions, however many each of them takes
	w.start("service")
	run := w.load()
	first := w.start("node", faultsVariable+"="+fault.RecordCommitted+"=kill@3")
	w.wantKilled(first)
	if !strings.Contains(first.said.String(), "fault fired: "+fault.RecordCommitted) {
		t.Fatal("the fault did not fire")
	}
	if w.done(run) == w.items {
		t.Fatal("the run was complete before the fault")
	}
	w.start("node")
	extra, again := w.wantSound(run), w.number(`SELECT count(*) FROM work_slice WHERE cause = 'session'`)
	if extra > again*chunk {
		t.Errorf("%d extra executions for %d slices that came again", extra, again)
	}
	if other := w.number(`SELECT count(*) FROM work_slice WHERE cause NOT IN ('ready', 'session')`); other != 0 {
		t.Errorf("%d slices were made for another cause", other)
	}
}

// A node sleeps for three lives of a session in the middle of its work. Others take over; when it wakes up, what it
// still writes touches nothing, and it says that it lost its session.
func TestNodeSleepsForThreeLeases(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.load()
	sleeper := w.start("node")
	w.until("the sleeper has work out", func() bool {
		return w.number(`SELECT count(*) FROM work_slice WHERE state IN ('claimed', 'sent')`) == 8
	})
	w.signal(sleeper, syscall.SIGSTOP)
	asleep := time.Now()
	w.start("node")
	w.start("service")
	w.until("others have done it all", func() bool { return w.done(run) == items })
	w.until("it has slept long enough", func() bool { return time.Since(asleep) > 3*sessionTTL })
	parts := w.number(`SELECT count(*) FROM work_result`)
	w.signal(sleeper, syscall.SIGCONT)
	w.until("the sleeper counts its loss", func() bool {
		return w.number(`SELECT count(*) FROM node_session WHERE (stats->>'sessions_lost')::int > 0`) > 0
	})
	if n := w.number(`SELECT count(*) FROM work_result`); n != parts {
		w.Errorf("%d parts were written by a zombie", n-parts)
	}
	w.wantSound(run)
	w.signal(sleeper, syscall.SIGTERM)
	w.await(sleeper)
	if sleeper.err != nil {
		w.Errorf("the sleeper ended with %v", sleeper.err)
	}
}

// A service dies in the middle of a chunk: JetStream hands its request to another, and only that chunk runs again.
func TestServiceIsKilledInMidChunk(t *testing.T) {
	t.Parallel()
	w := setup(t)
	run := w.load()
	w.start("node", sessionVariable+"=1m")
	dying := w.start("service", dieVariable+"=1050")
	w.until("the chunks before it are recorded", func() bool { return w.done(run) == 1000 })
	w.until("it stands in mid-chunk", func() bool { return strings.Contains(dying.said.String(), halfway) })
	w.signal(dying, syscall.SIGKILL)
	w.wantKilled(dying)
	w.start("service")
	extra := w.wantSound(run)
	again := map[string]int{}
	for e, n := range w.executions() {
		if n > 1 {
			again[e.slice.String()] += n - 1
		}
	}
	// The acknowledgement of the chunk before may have been on its way still.
	if extra < 50 || extra > 50+chunk || len(again) == 0 || len(again) > 2 {
		t.Errorf("%d executions too many, of slices %v; want the half chunk again", extra, again)
	}
	if n := w.number(`SELECT count(*) FROM work_slice WHERE cause <> 'ready'`); n != 0 {
		t.Errorf("%d slices were made again; want the same request delivered again", n)
	}
}
