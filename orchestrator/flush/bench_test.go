package flush_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/database"
)

// benched is a node, and a service that answers at once.
type benched struct {
	*bundle
	took chan time.Time // when a flush came to the service; no one need look
}

func benchNode(b *testing.B) *benched {
	b.Helper()
	ns := testenv.NATS(b)
	pool := testenv.Pool(b)
	nb := &benched{bundle: &bundle{&nodetest.Bundle{Pool: pool, Store: database.New(pool), NS: ns}},
		took: make(chan time.Time, 1)}
	node := testenv.Must(orchestrator.New(nb.Store, testenv.Conn(b, ns), orchestrator.Config{Streams: stream.Config{
		WorkMaxBytes: 64 << 20, ReplyMaxBytes: 64 << 20, EventMaxBytes: 8 << 20}}))(b)
	nb.Node = node
	svc, err := endpoints.New(testenv.Conn(b, ns), endpoints.Config{Name: "bench", Version: "1.0.0", Log: zap.NewNop()})
	if err == nil {
		err = endpoints.HandleList(svc, "benched", func(ctx context.Context, c *nodetest.Chunk) error {
			select {
			case nb.took <- time.Now():
			default:
			}
			return nodetest.Echo(ctx, c)
		}, endpoints.Concurrency(64))
	}
	testenv.NoError(b, err)
	testenv.Keep(b, b.Errorf, "the node", node.Run)
	testenv.Keep(b, b.Errorf, "the service", svc.Run)
	<-node.Ready()
	return nb
}

func (nb *benched) apply(b *testing.B, change func(*collector.CollectorSpec)) {
	b.Helper()
	spec := collector.CollectorSpec{Endpoint: "benched", MinSize: 1, MaxSize: 500, InFlight: 64,
		Dedupe: collector.DefaultDedupe, Timeout: collector.Span(time.Minute)}
	change(&spec)
	_, err := nb.Node.Collectors().ApplyCollector(b.Context(), collector.Text{Name: "benched", Spec: spec.WithDefaults(),
		Source: fmt.Sprint(spec)}, "bench")
	testenv.NoError(b, err)
}

// fill adds n operations, 500 in a call, four calls at once.
func (nb *benched) fill(b *testing.B, n int, key func(int) string) {
	b.Helper()
	const batch, callers = 500, 4
	var next atomic.Int64
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for {
				from := int(next.Add(batch)) - batch
				if from >= n {
					return
				}
				ops := make([]collector.Op, min(batch, n-from))
				for i := range ops {
					ops[i] = collector.Op{ID: fmt.Sprintf("%016x", uint64(from+i)*0x9e3779b97f4a7c15), Key: key(from + i),
						Payload: []byte(`{"id":"CUST-1234567","what":"balance changed","cents":123456}`)}
				}
				if _, err := nb.Node.Collectors().AddOps(b.Context(), "benched", 0, [][]collector.Op{ops}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

func (nb *benched) empty(b *testing.B) {
	b.Helper()
	for {
		left := false
		// By the indexes, so that a look at a million keys does not slow down what is measured.
		testenv.NoError(b, nb.Pool.QueryRow(b.Context(), `
			SELECT EXISTS (SELECT FROM collector c JOIN collector_key k ON k.collector = c.id WHERE k.flush IS NOT NULL)
				OR EXISTS (SELECT FROM collector c CROSS JOIN LATERAL (
					SELECT k.due_at FROM collector_key k WHERE k.collector = c.id AND k.key_version = c.key_version
						AND k.priority = 0 AND k.flush IS NULL AND k.due_at IS NOT NULL ORDER BY k.due_at LIMIT 1) k
					WHERE k.due_at < tranche_now() + interval '10 minutes')`).Scan(&left))
		if !left {
			return
		}
		<-time.After(5 * time.Millisecond)
	}
}

// BenchmarkCollector adds operations to a paused collector, and then has them flushed. Run it with a number, as
// -benchtime=100000x. The keys of 1M stand beside a million others that wait.
func BenchmarkCollector(b *testing.B) {
	skew := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.2, 1, 9_999)
	var mu sync.Mutex
	for _, bench := range []struct {
		name string
		rows int
		key  func(int) string
	}{
		{"keys=1", 0, func(int) string { return "k" }},
		{"keys=1000", 0, func(i int) string { return fmt.Sprint("k", i%1000) }},
		{"skewed=10000", 0, func(int) string { mu.Lock(); defer mu.Unlock(); return fmt.Sprint("k", skew.Uint64()) }},
		{"keys=1M", 1_000_000, func(i int) string { return fmt.Sprint("m", i*7919%1_000_000) }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			if b.N == 1 {
				return // the first look of package testing
			}
			nb := benchNode(b)
			nb.apply(b, func(s *collector.CollectorSpec) { s.MaxAge = collector.Span(time.Hour); s.MinSize = 2 })
			if bench.rows == 0 {
				nb.apply(b, func(s *collector.CollectorSpec) { s.MaxAge = 0 })
			}
			testenv.Must(nb.Pool.Exec(b.Context(), `
				WITH c AS (SELECT id FROM collector), o AS (
				INSERT INTO collector_op (collector, key_version, key, op_id, payload)
				SELECT c.id, 1, 'm' || n, 'first' || n, '{"id":"CUST-1234567"}' FROM c, generate_series(0, $1 - 1) n)
				INSERT INTO collector_key (collector, key_version, key, untried, oldest_at, due_at)
				SELECT c.id, 1, 'm' || n, 1, tranche_now(), tranche_now() + interval '1 hour' FROM c, generate_series(0, $1 - 1) n`,
				bench.rows))(b)
			testenv.Must(collector.New(nb.Store).SetCollector(b.Context(),
				"benched", workqueue.DocumentPaused, false, "bench"))(b)
			testenv.Must(nb.Pool.Exec(b.Context(), `VACUUM ANALYZE collector_key, collector_op`))(b)
			b.ResetTimer()
			begun := time.Now()
			nb.fill(b, b.N, bench.key)
			b.ReportMetric(float64(b.N)/time.Since(begun).Seconds(), "in/s")
			begun = time.Now()
			testenv.Must(nb.Node.Collectors().SetCollector(b.Context(),
				"benched", workqueue.DocumentActive, false, "bench"))(b)
			nb.empty(b)
			out := nb.Node.Stats()
			b.ReportMetric(float64(out.FlushedOps)/time.Since(begun).Seconds(), "out/s")
			b.ReportMetric(float64(out.Flushes)/time.Since(begun).Seconds(), "flushes/s")
		})
	}
}

// BenchmarkCollectorAge adds an operation at a time to an idle collector: how much later than max_age it comes to its
// service.
func BenchmarkCollectorAge(b *testing.B) {
	const age = 100 * time.Millisecond
	nb := benchNode(b)
	nb.apply(b, func(s *collector.CollectorSpec) { s.MinSize, s.MaxAge = 100, collector.Span(age) })
	var late []time.Duration
	for b.Loop() {
		begun := time.Now()
		nb.fill(b, 1, func(int) string { return fmt.Sprint("k", len(late)) })
		testenv.Must(nb.Pool.Exec(b.Context(), `DELETE FROM collector_seen`))(b)
		came := <-nb.took
		late = append(late, came.Sub(begun)-age)
	}
	slices.Sort(late)
	b.ReportMetric(float64(late[len(late)/2].Microseconds())/1000, "p50-late-ms")
	b.ReportMetric(float64(late[len(late)*99/100].Microseconds())/1000, "p99-late-ms")
}
