package natscluster

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

const (
	// sampleEvery is how often progress is looked at.
	sampleEvery = 50 * time.Millisecond
	// lull is the longest time between two outcomes that is no standstill: runs are watched while they are limited to a
	// pace at which chunks come several times as often.
	lull = time.Second
	// hiccup is the longest that a busy machine is stalled by itself.
	hiccup = 3 * time.Second
)

// progress is how many items of a run have had an outcome, over time.
type progress struct {
	watch *testenv.Watch

	mu   sync.Mutex
	came []moment // when there were more of them
}

// moment is a time, and how long this process had run by then.
type moment struct {
	at  time.Time
	ran time.Duration
}

func (p *progress) now() moment { return moment{time.Now(), p.watch.Ran()} }

const countDone = `SELECT coalesce(sum(bit_count(done | failed)), 0) FROM work_block WHERE run_id = $1`

// watch has the progress of a run sampled until the test ends.
func watch(t *testing.T, pool *pgxpool.Pool, run workqueue.RunID) *progress {
	t.Helper()
	p := &progress{watch: testenv.NewWatch(t)}
	p.note()
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(sampleEvery)
		defer tick.Stop()
		for last := 0; ; {
			select {
			case <-t.Context().Done():
				return
			case <-tick.C:
			}
			var n int
			if err := pool.QueryRow(context.Background(), countDone, run).Scan(&n); err != nil {
				t.Errorf("watch a run: %v", err)
				return
			}
			if n > last {
				last = n
				p.note()
			}
		}
	})
	t.Cleanup(watching.Wait) // the context has ended by then
	return p
}

func (p *progress) note() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.came = append(p.came, p.now())
}

// count returns how often there was progress since a moment.
func (p *progress) count(since time.Time) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.came {
		if m.at.After(since) {
			n++
		}
	}
	return n
}

// stood returns how long the longest standstill was that had begun, or was going on, after a moment, counted from that
// moment at the earliest. What begins long after it counts when it is longer than a hiccup of the machine. What the
// machine itself was stalled in says nothing: servers hold elections after it, and acknowledgements are late.
func (p *progress) stood(since time.Time) (took time.Duration) {
	p.gaps(since, func(began, ended moment) {
		length := ended.at.Sub(began.at)
		if length-(ended.ran-began.ran) > lull {
			return
		}
		if began.at.Before(since.Add(recovery)) || length > hiccup {
			took = max(took, min(length, ended.at.Sub(since)))
		}
	})
	return took
}

// longest returns how long the longest of those standstills was.
func (p *progress) longest(since time.Time) (took time.Duration) {
	p.gaps(since, func(began, ended moment) { took = max(took, ended.at.Sub(began.at)) })
	return took
}

// gaps tells of each standstill that ended after a moment, or goes on.
func (p *progress) gaps(since time.Time, tell func(began, ended moment)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	came := slices.Concat(p.came, []moment{p.now()})
	for i := 1; i < len(came); i++ {
		if came[i].at.After(since) && came[i].at.Sub(came[i-1].at) > lull {
			tell(came[i-1], came[i])
		}
	}
}
