package natscluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
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
	// lull is the longest time between two outcomes that is not a standstill: runs are watched while they are limited to a
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
	t.Cleanup(watching.Wait) // the context ended by then
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

// gaps tells of each standstill that ended after a moment, or continues.
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

// monitorTimeout bounds one question to a server's monitoring port.
const monitorTimeout = 2 * time.Second

// leaders is where a server says who leads what.
const leaders = "/jsz?accounts=1&streams=1&consumers=1"

// jsz is what a server says of JetStream on its monitoring port, as far as it is read here.
type jsz struct {
	Meta struct {
		Leader   string `json:"leader"`
		Size     int    `json:"cluster_size"`
		Replicas []peer `json:"replicas"`
	} `json:"meta_cluster"`
	Accounts []struct {
		Streams []struct {
			Name      string  `json:"name"`
			Cluster   cluster `json:"cluster"`
			Consumers []struct {
				Name    string  `json:"name"`
				Cluster cluster `json:"cluster"`
			} `json:"consumer_detail"`
		} `json:"stream_detail"`
	} `json:"account_details"`
}

type cluster struct {
	Leader   string `json:"leader"`
	Replicas []peer `json:"replicas"`
}

type peer struct {
	Name    string `json:"name"`
	Current bool   `json:"current"`
	Offline bool   `json:"offline"`
}

func (s *natsProcess) get(path string, into any) bool {
	client := http.Client{Timeout: monitorTimeout}
	defer client.CloseIdleConnections()
	resp, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d%s", s.monitor, path))
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	return resp.StatusCode == http.StatusOK && json.NewDecoder(resp.Body).Decode(into) == nil
}

// leader asks the servers that are awake who leads something, until those that know agree.
func (c *servers) leader(of func(*jsz) string) string {
	found := ""
	for _, s := range c.servers {
		var said jsz
		if !s.answers() || s.isolated || !s.get(leaders, &said) {
			continue
		}
		name := of(&said)
		if name == "" {
			continue
		}
		if found != "" && found != name {
			return ""
		}
		found = name
	}
	return found
}

// MetaLeader returns the server that leads the cluster, or "" while there is none.
func (c *servers) MetaLeader() string {
	return c.leader(func(j *jsz) string { return j.Meta.Leader })
}

// StreamLeader returns the server that leads a stream, or "" while there is none.
func (c *servers) StreamLeader(stream string) string {
	return c.leader(func(j *jsz) string {
		for _, account := range j.Accounts {
			for _, s := range account.Streams {
				if s.Name == stream {
					return s.Cluster.Leader
				}
			}
		}
		return ""
	})
}

// awaitLeader waits until someone other than a server leads something, and returns who does. leads is one of the
// methods above.
func awaitLeader(t testing.TB, other string, leads func() string) string {
	t.Helper()
	name := ""
	await(t, "another server leads than "+other, func() bool {
		name = leads()
		return name != "" && name != other
	})
	return name
}

// steady is for how long leaders must stay to count as elected: servers that were asleep may continue for a moment
// as if they still led.
const steady = 2 * time.Second

// AwaitElected waits until the servers that are awake know who leads the cluster and each stream and consumer, and it
// is one of them. It returns since when that has been so.
func (c *servers) AwaitElected(t testing.TB) (since time.Time) {
	t.Helper()
	await(t, "everything has a leader", func() bool {
		switch now := time.Now(); {
		case !c.elected():
			since = time.Time{}
		case since.IsZero():
			since = now
		}
		return !since.IsZero() && time.Since(since) > steady
	})
	return since
}

func (c *servers) elected() bool {
	awake := map[string]bool{}
	for _, s := range c.servers {
		awake[s.name] = s.answers() && !s.isolated
	}
	for _, s := range c.servers {
		var said jsz
		if !awake[s.name] {
			continue
		}
		if !s.get(leaders, &said) || !awake[said.Meta.Leader] {
			return false
		}
		for _, account := range said.Accounts {
			for _, stream := range account.Streams {
				if !awake[stream.Cluster.Leader] {
					return false
				}
				for _, consumer := range stream.Consumers {
					if !awake[consumer.Cluster.Leader] {
						return false
					}
				}
			}
		}
	}
	return true
}

// AwaitCurrent waits until all servers are up, have a leader, and have caught up with what they keep.
func (c *servers) AwaitCurrent(t testing.TB) {
	t.Helper()
	await(t, "every NATS server is current", c.current)
}

func (c *servers) current() bool {
	if c.MetaLeader() == "" {
		return false
	}
	for _, s := range c.servers {
		var health struct {
			Status string `json:"status"`
		}
		var said jsz
		if !s.answers() || !s.get("/healthz", &health) || health.Status != "ok" || !s.get("/jsz", &said) ||
			said.Meta.Size != clusterSize {
			return false
		}
		for _, p := range said.Meta.Replicas { // which the leader alone knows
			if p.Offline || !p.Current {
				return false
			}
		}
	}
	return true
}
