package servers

import (
	"context"
	"slices"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/health"
)

// at is the URL of a database behind addresses of proxies.
func at(addresses string) string {
	return "postgres://tranche@" + addresses + "/tranche?sslmode=disable"
}

// before is what there is when the database begins to lose what it is told.
type before struct {
	long, short workqueue.RunID
	done, beat  int
}

// untilPoint starts a long run and a short one, and returns when some of the long one is done. The service waits then
// until it is told to continue, so that there is enough left to be done.
func (w *past) untilPoint() (b before) {
	w.Helper()
	w.upTo(items / 4)
	w.start()
	w.start()
	b.long = w.run("long", items)
	w.until("some of it is done", func() bool { return w.number(w.url, doneOf, b.long) >= items/8 })
	b.short = w.run("short", 2*chunk)
	return b
}

// beyondPoint lets the nodes continue: a third more of the long run is recorded, the short one completes, is reported,
// and a run is made of which no one will know.
func (w *past) beyondPoint(b *before) (vanished workqueue.RunID) {
	w.Helper()
	vanished = w.run("vanished", chunk)
	w.until("the short run is reported", func() bool {
		return w.number(w.url, `SELECT count(*) FROM run_event WHERE run_id = $1 AND kind = 'completed'
			AND published_at IS NOT NULL`, b.short) == 1
	})
	w.until("a third more is done", func() bool { return w.number(w.url, doneOf, b.long) >= b.done+items/3 })
	w.until("time has passed", func() bool { return w.number(w.url, beatNow) >= b.beat+4 })
	b.done = w.number(w.url, doneOf, b.long)
	b.beat = w.number(w.url, beatNow)
	return vanished
}

// wantRewound checks that the database, which is up again, lacks what it had.
func (w *past) wantRewound(url string, b before, vanished workqueue.RunID) {
	w.Helper()
	done, beat := w.number(url, doneOf, b.long), w.number(url, beatNow)
	if done >= b.done || beat >= b.beat || w.number(url, madeRuns, vanished) != 0 {
		w.Fatalf("the database did not go back: %d done of %d, beat %d of %d", done, b.done, beat, b.beat)
	}
	w.Logf("the database went back: %d items done of %d, beat %d of %d", done, b.done, beat, b.beat)
}

// wantWhole holds everything that must be so afterwards against what is.
func (w *past) wantWhole(url string, b before) {
	w.Helper()
	w.wantSound(url, "long", b.long, items)
	w.wantSound(url, "short", b.short, 2*chunk)
	w.wantInvariants(url)
	const noted = `SELECT count(*) FROM database_rewind WHERE lost AND to_at > from_at`
	testenv.Same(w, w.number(url, noted), 1, "gaps were noted")
	const told = `SELECT count(*) FROM run_event WHERE run_id = $1 AND kind = 'rewound' AND payload ? 'from'`
	testenv.Same(w, w.number(url, told, b.long), 1, "gaps that the run's history reports")
	facts, err := health.New(database.New(testenv.Connect(w, url))).Health(context.Background(), health.Limits{})
	gap := func(c health.Condition) bool { return c.Kind == health.DatabaseRewind && c.Severity == health.Critical }
	if err != nil || !slices.ContainsFunc(facts.Conditions, gap) {
		w.Errorf("the health knows of %+v, %v", facts, err)
	}
	testenv.Same(w, len(w.completions("run", b.short)), 1, "the completion was reported under the ids")
	testenv.Same(w, w.number(url, `SELECT count(*) FROM work_slice WHERE error_code = 'deadline'`), 0,
		"slices waited for their deadline")
}

// A standby that had fallen behind takes over. Both ways of finding it work, and nodes that live through it as well as
// ones that are started afterwards, which know of it from JetStream.
func TestStandbyThatLagsTakesOver(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ hosts, restarted bool }{
		"behind one address":                {},
		"two hosts":                         {hosts: true},
		"nodes that are started afterwards": {restarted: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary := testenv.Postgres(t)
			standby, replication := primary.Standby(t, false)
			front, second := testenv.NewProxy(t, primary.Target(t)), testenv.NewProxy(t, standby.Target(t))
			url := at(front.Addr())
			if tc.hosts {
				url = at(front.Addr()+","+second.Addr()) + "&target_session_attrs=read-write"
			}
			w := setupPast(t, url)
			b := w.untilPoint()
			w.until("the standby has some of it", func() bool {
				return w.number(standby.URL(), madeRuns, b.short) == 1 && w.number(standby.URL(), beatNow) > 0
			})
			replication.Cut()
			b.done, b.beat = w.number(standby.URL(), doneOf, b.long), w.number(standby.URL(), beatNow)
			w.upTo(0)
			vanished := w.beyondPoint(&b)
			primary.Kill(t)
			if tc.restarted {
				w.stopNodes()
			}
			standby.Promote(t)
			w.wantRewound(standby.URL(), b, vanished)
			if !tc.hosts {
				front.Turn(standby.Target(t))
			}
			if tc.restarted {
				w.start()
			}
			w.wantWhole(standby.URL(), b)
		})
	}
}

// A backup is put back under nodes that were stopped meanwhile, and under ones that continued.
func TestBackupIsPutBack(t *testing.T) {
	t.Parallel()
	for name, restarted := range map[string]bool{"nodes live through it": false, "nodes are started afterwards": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := testenv.Postgres(t)
			front := testenv.NewProxy(t, cluster.Target(t))
			w := setupPast(t, at(front.Addr()))
			b := w.untilPoint()
			restore := cluster.Backup(t)
			b.done, b.beat = w.number(w.url, doneOf, b.long), w.number(w.url, beatNow)
			w.upTo(0)
			vanished := w.beyondPoint(&b)
			cluster.Kill(t)
			if restarted {
				w.stopNodes()
			}
			front.Cut()
			restore()
			cluster.Start(t)
			w.wantRewound(cluster.URL(), b, vanished)
			front.Heal()
			if restarted {
				w.start()
			}
			w.wantWhole(cluster.URL(), b)
		})
	}
}

// A synchronous standby takes over: nothing is lost, and no one is told that it is.
func TestSynchronousStandbyTakesOver(t *testing.T) {
	t.Parallel()
	primary := testenv.Postgres(t)
	standby, _ := primary.Standby(t, true)
	front := testenv.NewProxy(t, primary.Target(t))
	w := setupPast(t, at(front.Addr()))
	b := w.untilPoint()
	w.upTo(0)
	w.until("the short run is reported", func() bool {
		return w.number(w.url, `SELECT count(*) FROM batchrun WHERE id = $1 AND state = 'completed'`, b.short) == 1
	})
	done := w.number(w.url, doneOf, b.long)
	primary.Kill(t)
	standby.Promote(t)
	if got := w.number(standby.URL(), doneOf, b.long); got < done {
		t.Fatalf("the standby has %d items done of %d", got, done)
	}
	front.Turn(standby.Target(t))
	w.wantSound(standby.URL(), "long", b.long, items)
	w.wantSound(standby.URL(), "short", b.short, 2*chunk)
	w.wantInvariants(standby.URL())
	testenv.Same(t, w.number(standby.URL(), `SELECT count(*) FROM database_rewind WHERE lost`), 0, "gaps are reported")
	testenv.Same(t, w.number(standby.URL(), `SELECT count(*) FROM database_rewind`), 1, "times the take-over was noted")
	testenv.Same(t, w.number(standby.URL(), `SELECT count(*) FROM run_event WHERE kind = 'rewound'`), 0,
		"runs report a loss")
}

// The database moves to another server by a dump, while the nodes are stopped and the service continues.
func TestADumpIsRestoredElsewhere(t *testing.T) {
	t.Parallel()
	old, other := testenv.Postgres(t), testenv.Postgres(t)
	w := setupPast(t, old.URL())
	b := w.untilPoint()
	w.stopNodes()
	w.upTo(0)
	w.url = old.DumpTo(t, other, "moved")
	old.Stop(t)
	w.start()
	w.wantSound(w.url, "long", b.long, items)
	w.wantSound(w.url, "short", b.short, 2*chunk)
	w.wantInvariants(w.url)
	testenv.Same(t, w.number(w.url, `SELECT count(*) FROM database_rewind WHERE lost`), 0, "gaps are reported")
}
