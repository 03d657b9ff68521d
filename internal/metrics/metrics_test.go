package metrics_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	dto "github.com/prometheus/client_model/go"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/buildinfo"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/internal/metrics"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// bench is a node that is measured, and leads.
type bench struct {
	*testing.T

	pool  *pgxpool.Pool
	store *database.DB
	nats  string
	node  *orchestrator.Node
	m     *metrics.Metrics
}

func setup(t *testing.T, config metrics.Config) *bench {
	t.Helper()
	admin, serving := testenv.Pools(t)
	b := &bench{T: t, pool: admin, store: database.New(serving)}
	ns := testenv.NATS(t)
	b.nats = ns.URL()
	nc := testenv.Conn(t, ns)
	var err error
	b.m = testenv.Must(metrics.New(config))(t)
	b.node, err = orchestrator.New(b.store, nc, orchestrator.Config{Meter: b.m, Grace: time.Minute,
		SessionTTL: time.Minute, LeaseTTL: time.Minute}) // it leads on when the machine is stalled
	testenv.NoError(t, err)
	watch := testenv.Must(health.New(health.Config{Store: b.store, NC: nc}))(t)
	t.Cleanup(watch.Wait)
	b.m.Watch(watch, func(context.Context) map[string]bool { return map[string]bool{"jetstream": true} })
	b.m.Bind(metrics.Sources{Node: b.node, Store: b.store, NC: nc})
	b.keep(b.node.Run)
	<-b.node.Ready()
	b.until("it leads", func() bool { return b.node.Leading() != nil })
	return b
}

func (b *bench) keep(f func(context.Context) error) {
	b.Helper()
	testenv.Keep(b, b.Errorf, "it", f)
}

func (b *bench) until(what string, is func() bool) {
	b.Helper()
	testenv.Until(b, 3*time.Minute, what, func() bool {
		b.node.WakeLeaderTask("sweep") // its lease lives for so long that by itself it sweeps seldom
		return is()
	})
}

type account struct {
	ID string `json:"id"`
}

// serve answers at an endpoint, and refuses one account.
func (b *bench) serve(endpoint string) {
	b.Helper()
	svc := testenv.Must(endpoints.New(testenv.Dial(b.T, b.nats), endpoints.Config{Name: endpoint, Version: "1.0.0"}))(b)
	testenv.NoError(b, endpoints.HandleEach(svc, endpoint, func(_ context.Context, in account) (account, error) {
		if in.ID == "KEY-7" {
			return in, endpoints.Fail("refused", "no such account as KEY-7")
		}
		return in, nil
	}))
	b.keep(svc.Run)
}

func (b *bench) run(endpoint string, n int) workqueue.RunID {
	b.Helper()
	i := 0
	loaded := testenv.Must(b.node.Runs().Start(b.Context(), start.LoadRequest{Plan: endpoint, CreatedBy: "test",
		Steps: []workqueue.StepSpec{{Name: endpoint, Endpoint: endpoint, StepSettings: workqueue.StepSettings{
			Chunk: 50, InFlight: 16, MaxAttempts: 3, Timeout: 10 * time.Minute, RetryBackoff: 10 * time.Millisecond,
		}}}}, func(item *start.LoadItem) error {
		if i == n {
			return io.EOF
		}
		key := fmt.Sprintf("KEY-%d", i)
		item.Key, item.Payload, item.Line = key, fmt.Appendf(nil, `{"id":%q}`, key), i
		i++
		return nil
	}))(b)
	return loaded.Run
}

func (b *bench) completed(run workqueue.RunID) {
	b.Helper()
	b.until("the run is completed", func() bool {
		return testenv.Must(inspect.New(b.store).Run(b.Context(), run))(b).State == "completed"
	})
}

func (b *bench) gathered() map[string]*dto.MetricFamily {
	b.Helper()
	families := testenv.Must(b.m.Gatherer().Gather())(b)
	all := map[string]*dto.MetricFamily{}
	for _, f := range families {
		all[f.GetName()] = f
	}
	return all
}

// sum adds up the series of a metric that have some labels; of a histogram, how much it has seen.
func sum(all map[string]*dto.MetricFamily, name string, labels ...string) (sum float64) {
	for _, series := range all[name].GetMetric() {
		has := map[string]string{}
		for _, l := range series.GetLabel() {
			has[l.GetName()] = l.GetValue()
		}
		fits := true
		for i := 0; i < len(labels); i += 2 {
			fits = fits && has[labels[i]] == labels[i+1]
		}
		if fits {
			sum += series.GetCounter().GetValue() + series.GetGauge().GetValue() +
				float64(series.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// A run is measured from its intake to its completion, and nothing says which it was.
func TestARunIsMeasured(t *testing.T) {
	t.Parallel()
	b := setup(t, metrics.Config{Build: buildinfo.Info{Version: "1.2.3", Commit: "abc"}, Every: time.Nanosecond,
		Timeout: time.Minute})
	b.serve("statement")
	run := b.run("statement", 200)
	unheard := b.run("nobody", 30)
	testenv.Must(b.pool.Exec(t.Context(), `WITH n AS (INSERT INTO namespace (name) VALUES ('team-a') RETURNING name)
		UPDATE batchrun SET namespace = 'team-a' WHERE id = $1`, unheard))(t)
	js := testenv.Must(jetstream.New(testenv.Dial(t, b.nats), jetstream.WithDefaultTimeout(time.Minute)))(t)
	for _, name := range []string{"nobody", "unknown", "nobody", "unknown"} { // runs have never asked the second
		testenv.Must(js.Publish(t.Context(), wire.WorkSubject(wire.LaneOf(name)), nil))(t)
	}
	b.completed(run)
	// All of it is there at the first reading; after one that a slow NATS cut short, the next is 50 s away.
	var all map[string]*dto.MetricFamily
	b.until("all is told", func() bool {
		all = b.gathered()
		return sum(all, "tranche_run_completion_delay_seconds") == 1 &&
			sum(all, "tranche_endpoint_no_listeners", "endpoint", "nobody") == 1 &&
			sum(all, "tranche_endpoint_calls_unanswered", "endpoint", "nobody") == 2 &&
			sum(all, "tranche_endpoint_calls_unanswered", "endpoint", metrics.Other) == 2
	})
	for _, want := range []struct {
		name   string
		labels []string
		value  float64
	}{
		{"tranche_items_finished_total", []string{"endpoint", "statement", "outcome", "done"}, 199},
		{"tranche_items_finished_total", []string{"endpoint", "statement", "outcome", "failed"}, 1},
		{"tranche_requests_sent_total", []string{"endpoint", "statement"}, 4},
		{"tranche_requests_resent_total", nil, 0},
		{"tranche_requests_ended_total", []string{"endpoint", "statement", "outcome", "answered"}, 4},
		{"tranche_requests_ended_total", []string{"endpoint", "statement", "outcome", "expired"}, 0},
		{"tranche_runs_completed_total", []string{"outcome", "failures"}, 1},
		{"tranche_runs", []string{"namespace", "team-a", "state", "running"}, 1},
		{"tranche_runs", []string{"state", "running"}, 1},
		{"tranche_runs_late", []string{"namespace", "team-a"}, 0},
		{"tranche_intake_rows_total", nil, 230},
		{"tranche_node_is_leader", nil, 1},
		{"tranche_leader_epoch", nil, 1},
		{"tranche_database_scrape_success", nil, 1},
		{"tranche_nodes", []string{"state", "alive"}, 1},
		{"tranche_nats_connected", nil, 1},
		{"tranche_node_unready", []string{"reason", "jetstream"}, 1},
		{"tranche_endpoint_breaker_open", nil, 0},
		{"tranche_build_info", []string{"version", "1.2.3", "commit", "abc"}, 1},
		{"tranche_health_conditions", []string{"kind", "no_listeners"}, 1},
	} {
		testenv.Same(t, sum(all, want.name, want.labels...), want.value, "%s %v", want.name, want.labels)
	}
	out := sum(all, "tranche_endpoint_items_ready", "endpoint", "nobody") +
		sum(all, "tranche_endpoint_items_in_flight", "endpoint", "nobody")
	testenv.Same(t, out, 30, "items wait for no one")
	for _, name := range []string{"tranche_claim_duration_seconds", "tranche_publish_duration_seconds",
		"tranche_record_duration_seconds", "tranche_intake_bytes_total", "tranche_stream_size_bytes",
		"tranche_stream_limit_bytes", "tranche_database_size_bytes", "tranche_leader_task_last_success_timestamp_seconds",
		"tranche_pool_connections_limit", "tranche_endpoint_requests_limit", "go_goroutines",
		"process_cpu_seconds_total"} {
		if sum(all, name) <= 0 {
			t.Errorf("%s is %v", name, all[name])
		}
	}
	if h := all["tranche_claim_duration_seconds"].GetMetric()[0].GetHistogram(); len(h.GetPositiveSpan()) == 0 ||
		len(h.GetBucket()) == 0 {
		t.Error("the histogram is not both native and of fixed buckets")
	}
	b.wantNoSecrets(run)
	missing := []string{ // in this test
		"tranche_collector_max_age_seconds", "tranche_collector_oldest_operation_seconds",
		"tranche_collector_operations_parked", "tranche_dead_letters_total", "tranche_endpoint_pace_chunk_items",
		"tranche_endpoint_pace_items_per_second", "tranche_replies_quarantined_total",
		"tranche_replies_redelivered_total", "tranche_requests_resent_total", "tranche_api_requests_total",
		"tranche_certificate_expiry_timestamp_seconds", "tranche_runs_end_timestamp_seconds",
	}
	for _, m := range b.m.Catalog() {
		if _, there := all[m.Name]; !there && !slices.Contains(missing, m.Name) {
			t.Errorf("%s is in the catalog and not told", m.Name)
		}
	}
}

// wantNoSecrets looks through a whole answer for what must not be in it.
func (b *bench) wantNoSecrets(run workqueue.RunID) {
	b.Helper()
	answer := httptest.NewRecorder()
	b.m.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	text := answer.Body.String()
	if answer.Code != 200 || !strings.Contains(text, "tranche_items_finished_total{") {
		b.Errorf("status %d: %.300s", answer.Code, text)
	}
	for _, secret := range []string{run.String(), "KEY-7", "no such account"} {
		if strings.Contains(text, secret) {
			b.Errorf("%q is in what everybody who scrapes may read", secret)
		}
	}
}

// What is true of the database is told by the leader, so that a sum over nodes is right.
func TestOnlyTheLeaderTellsOfTheWhole(t *testing.T) {
	t.Parallel()
	b := setup(t, metrics.Config{})
	follower := testenv.Must(metrics.New(metrics.Config{}))(t)
	second := testenv.Must(orchestrator.New(b.store, testenv.Dial(t, b.nats), orchestrator.Config{Meter: follower}))(t)
	follower.Watch(testenv.Must(health.New(health.Config{Store: b.store, NC: testenv.Dial(t, b.nats)}))(t),
		func(context.Context) map[string]bool { return map[string]bool{"jetstream": false} })
	follower.Bind(metrics.Sources{Node: second, Store: b.store, NC: testenv.Dial(t, b.nats)})
	b.keep(second.Run)
	<-second.Ready()
	leader := b.gathered()
	b.m = follower
	other := b.gathered()
	if sum(other, "tranche_node_is_leader") != 0 || sum(leader, "tranche_node_is_leader") != 1 {
		t.Error("not one of them leads")
	}
	for _, m := range follower.Catalog() {
		_, here := leader[m.Name]
		if _, there := other[m.Name]; m.Leader && there || !m.Leader && here && !there {
			t.Errorf("%s: the leader tells it: %v, the other node: %v", m.Name, here, there)
		}
	}
}

// The number of series is bounded, whatever there is of endpoints, runs, reasons, and routes that people ask for.
func TestSeriesAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, metrics.Config{Every: time.Nanosecond, Timeout: time.Minute})
	model := b.run("model", 10)
	const endpoints, runs = 1000, 10_000
	b.cloneRuns(model, endpoints, runs)
	for i := range endpoints {
		b.m.Happened(core.EventSent, fmt.Sprintf("e%d", i), 1)
		b.m.Happened(core.EventDead, fmt.Sprintf("forged%d", i), 1)
		b.m.Happened(core.EventQuarantined, fmt.Sprintf("reason%d", i), 1)
		b.m.Settled([]settle.Settled{{Endpoint: fmt.Sprintf("e%d", i), Done: 1}})
	}
	for i := range runs {
		b.m.Asked(fmt.Sprintf("GET /route%d", i), "viewer", 200)
	}
	var all map[string]*dto.MetricFamily
	b.until("the database is read", func() bool { // a slow machine may need another try
		all = b.gathered()
		return sum(all, "tranche_database_scrape_success") == 1
	})
	series := 0
	for name, f := range all {
		series += len(f.GetMetric())
		values := map[string]bool{}
		for _, s := range f.GetMetric() {
			for _, l := range s.GetLabel() {
				if l.GetName() == "endpoint" {
					values[l.GetValue()] = true
				}
			}
		}
		if len(values) > metrics.DefaultEndpoints+1 {
			t.Errorf("%s tells %d endpoints apart; want %d, and the others", name, len(values), metrics.DefaultEndpoints)
		}
	}
	if series > 9000 {
		t.Errorf("%d series; docs/metrics.md says 9,000 at most", series)
	}
	// Nothing is left out of a sum.
	testenv.Same(t, sum(all, "tranche_items_finished_total"), endpoints, "items were finished")
	ready, out := sum(all, "tranche_endpoint_items_ready"), sum(all, "tranche_endpoint_items_in_flight")
	testenv.Same(t, ready+out, 10*(runs+1), "items ready and out")
	testenv.Same(t, sum(all, "tranche_dead_letters_total", "endpoint", metrics.Other), endpoints,
		"endpoints that only messages name have series of their own")
}

// cloneRuns makes runs like one, of as many endpoints, and lets the others go.
func (b *bench) cloneRuns(model workqueue.RunID, endpoints, runs int) {
	b.Helper()
	for _, sql := range []string{
		`INSERT INTO batchrun SELECT (jsonb_populate_record(r, jsonb_build_object('id', gen_random_uuid(),
			'name', 'clone ' || i, 'idempotency_key', NULL))).*
		 FROM batchrun r, generate_series(1, $2::int) i WHERE r.id = $1 AND $3::int > 0`,
		`INSERT INTO run_step SELECT (jsonb_populate_record(s, jsonb_build_object('run_id', r.id,
			'endpoint', 'e' || (row_number() OVER () % $3::int)))).*
		 FROM run_step s, batchrun r WHERE s.run_id = $1 AND r.name LIKE 'clone %' AND $2::int > 0
			AND NOT EXISTS (SELECT FROM run_step o WHERE o.run_id = r.id)`,
		`INSERT INTO work_block (run_id, step, block, size, ready)
		 SELECT s.run_id, s.step, 0, 10, (repeat('1', 10) || repeat('0', 8182))::bit(8192)
		 FROM run_step s WHERE s.run_id <> $1 AND $2::int + $3::int > 0
			AND NOT EXISTS (SELECT FROM work_block o WHERE o.run_id = s.run_id)`,
	} {
		_, err := b.pool.Exec(b.Context(), sql, model, runs, endpoints)
		testenv.MustSame(b, err, nil, "%s", sql)
	}
}

// A scrape does not wait for a database that hangs, and tells the rest.
func TestADatabaseThatIsAway(t *testing.T) {
	t.Parallel()
	b := setup(t, metrics.Config{Every: time.Nanosecond})
	lock := testenv.Must(b.pool.Begin(t.Context()))(t)
	testenv.Must(lock.Exec(t.Context(), `LOCK TABLE collector`))(t)
	all := b.gathered()
	_, told := all["tranche_runs"]
	_, known := all["tranche_database_scrape_success"]
	if told || !known || sum(all, "tranche_node_is_leader") != 1 || sum(all, "tranche_database_scrape_success") != 0 {
		t.Errorf("told: %v", slices.Collect(maps.Keys(all)))
	}
	testenv.NoError(t, lock.Rollback(t.Context()))
	b.until("it is read again", func() bool { return sum(b.gathered(), "tranche_database_scrape_success") == 1 })
}
