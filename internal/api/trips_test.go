package api_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/identity"
)

const (
	// maxTrips is how many round trips to the database a run of ten items may take, one at a time, from its POST to
	// its completion event. It takes 9, and one that is slow; one of them looks up the token of who starts it.
	maxTrips = 11
	// tripTime is so long that what else a run takes is little beside it.
	tripTime  = 80 * time.Millisecond
	tripWarm  = 25 // runs before anything is measured: statements are prepared on each connection once
	tripTries = 4  // of which the fastest counts: others may have met a poll or a heartbeat
)

// far is a whole server, with a node, whose database is a long way off, and a service.
type far struct {
	*apitest.Engine
	proxy     *testenv.Proxy
	completed chan *nats.Msg
	forget    func() // what the server knows of who asks
	watch     *testenv.Watch
}

func setupFar(t *testing.T) *far {
	t.Helper()
	through, proxy := testenv.Through(t, testenv.Database(t))
	f := &far{proxy: proxy, completed: make(chan *nats.Msg, 1), watch: testenv.NewWatch(t)}
	f.proxy.Delay(0)
	config := testenv.Must(pgxpool.ParseConfig(through))(t)
	config.MaxConns = database.DefaultMaxConns
	pool := testenv.Must(pgxpool.NewWithConfig(t.Context(), config))(t)
	t.Cleanup(pool.Close)
	ns := testenv.NATS(t)
	nc := testenv.Conn(t, ns)
	f.Engine = apitest.SetupEngineOver(t, pool, nc, api.Config{})
	f.Ns = ns
	f.Ready()
	f.Serve(func(s *endpoints.Service) error {
		return endpoints.HandleEach(s, "echo", func(_ context.Context, in any) (any, error) { return in, nil })
	})
	testenv.Must(nc.Subscribe(wire.EventSubject("run.completed"), func(m *nats.Msg) { f.completed <- m }))(t)
	testenv.NoError(t, nc.Flush())
	gate := testenv.Must(access.New(identity.New(f.Store), access.Config{}))(t)
	f.Gated, f.forget = true, gate.Forget // no one has asked for a while
	f.Over(api.NodeOf(f.Node), nc, api.Config{Access: gate})
	return f
}

// run starts a run of ten items and waits for its completion event. It returns how long that took.
func (f *far) run(header ...string) time.Duration {
	f.Helper()
	items := "id\n" + strings.Join(strings.Split("abcdefghij", ""), "\n")
	f.forget()
	began := f.watch.Ran()
	code, text := f.Ask(http.MethodPost, api.Prefix+"/runs?endpoint=echo&key=id", strings.NewReader(items), header...)
	testenv.MustSame(f, code, http.StatusCreated, "start: %s", text)
	var started runs.Started
	testenv.NoError(f, json.Unmarshal(text, &started))
	for over := time.After(time.Minute); ; {
		select {
		case m := <-f.completed:
			took := f.watch.Ran() - began
			if strings.Contains(string(m.Data), started.Run.String()) { // one of an earlier run may come again
				return took
			}
		case <-over:
			f.Fatal("the run does not complete")
		}
	}
}

// fastest is how long the fastest of some runs took, and how long the slowest question of one round trip did meanwhile.
func (f *far) fastest(header ...string) (best, trip time.Duration) {
	f.Helper()
	for range tripTries {
		took := f.run(header...)
		if best == 0 || took < best {
			best = took
		}
		began := f.watch.Ran()
		testenv.Must(f.Pool.Exec(f.Context(), "SELECT"))(f)
		trip = max(trip, f.watch.Ran()-began)
	}
	return best, trip
}

// trips is how many round trips a run takes, once it is warm, one at a time: by how much longer it takes when each is
// longer.
func (f *far) trips(header ...string) float64 {
	f.Helper()
	f.proxy.Delay(0)
	for range tripWarm {
		f.run(header...)
	}
	near, _ := f.fastest(header...)
	f.proxy.Delay(tripTime / 2)
	for range 2 { // on the connections that are needed now
		f.run(header...)
	}
	away, trip := f.fastest(header...)
	trip = min(max(trip, tripTime), 2*tripTime) // a slow machine makes it longer
	n := float64(away-near) / float64(trip)
	f.Logf("%.1f round trips: %s with the database beside it, %s with one of %s", n, near, away, trip)
	return n
}

// A run of ten items takes few round trips, one at a time, also when it has to be learned who asks for it.
func TestARunTakesFewRoundTrips(t *testing.T) {
	t.Parallel()
	f := setupFar(t)
	if n := f.trips("Authorization", "Bearer "+f.Token("ann", access.Operator, 0).Secret); n > maxTrips {
		t.Errorf("a run of ten items takes %.1f round trips from its POST to its completion event; %d are allowed", n,
			maxTrips)
	}
}
