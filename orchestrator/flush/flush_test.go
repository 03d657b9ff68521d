package flush_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/order"
)

// gather applies a collector of the endpoint of the same name.
func (b *bundle) gather(t *testing.T, name string, change func(*collectorstore.CollectorSpec)) {
	t.Helper()
	spec := collectorstore.CollectorSpec{Endpoint: name, MinSize: 2, MaxSize: 50,
		MaxAge:  collectorstore.Span(50 * time.Millisecond),
		Backoff: collectorstore.Span(time.Millisecond), Dedupe: collectorstore.DefaultDedupe}
	if change != nil {
		change(&spec)
	}
	_, err := b.Node.Collectors().ApplyCollector(t.Context(), collectorstore.Text{Name: name, Spec: spec.WithDefaults(),
		Source: name}, "test")
	testenv.NoError(t, err)
}

// addOps adds n operations to a collector, to keys in turn, each with its number among those of its key.
func (b *bundle) addOps(t *testing.T, collector string, from, n, keys int) {
	t.Helper()
	ops := make([]collectorstore.Op, n)
	for i := range ops {
		at := from + i
		ops[i] = collectorstore.Op{ID: fmt.Sprint("op", at), Key: fmt.Sprint("k", at%keys),
			Payload: fmt.Appendf(nil, `{"id":"%d %d"}`, at%keys, at/keys)}
	}
	out := testenv.Must(b.Node.Collectors().AddOps(t.Context(), collector, 0, [][]collectorstore.Op{ops}))(t)
	testenv.Same(t, out[0].Added, n, "added %+v", out)
}

const noOps = `SELECT NOT EXISTS (SELECT FROM collector_op) AND NOT EXISTS (SELECT FROM collector_key)`

// ledgerOfKeys holds what a service is asked against the order of the keys.
type ledgerOfKeys struct {
	mu     sync.Mutex
	next   map[int]int // of a key, what comes next
	busy   map[int]bool
	done   int
	faults []string
}

func newLedgerOfKeys() *ledgerOfKeys { return &ledgerOfKeys{next: map[int]int{}, busy: map[int]bool{}} }

func (l *ledgerOfKeys) fault(format string, args ...any) {
	l.faults = append(l.faults, fmt.Sprintf(format, args...))
}

// begin notes that a key is at work, and end that it is not any more.
func (l *ledgerOfKeys) begin(key int, busy bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if busy && l.busy[key] {
		l.fault("key %d is in two flushes", key)
	}
	l.busy[key] = busy
}

// take notes that an operation is carried out.
func (l *ledgerOfKeys) take(key, number int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if number != l.next[key] {
		l.fault("key %d: number %d when %d was next", key, number, l.next[key])
	}
	l.next[key] = number + 1
	l.done++
}

func (l *ledgerOfKeys) check(t *testing.T, done int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.faults[:min(len(l.faults), 10)] {
		t.Error(f)
	}
	testenv.Same(t, l.done, done, "operations were carried out")
}

func opOf(t *testing.T, item *endpoints.Item[nodetest.Account, nodetest.Statement]) (key, number int) {
	t.Helper()
	testenv.Must(fmt.Sscanf(item.In.ID, "%d %d", &key, &number))(t)
	return key, number
}

// Two nodes flush the keys of a collector: each at one at a time, in order, whatever fails in between, and everything
// exactly once, since nothing is lost.
func TestNodesFlushKeysInOrderAndOneAtATime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.StartNode(t)
	l := newLedgerOfKeys()
	seen := sync.Map{}
	b.Serve(t, "ordered", func(_ context.Context, chunk *nodetest.Chunk) error {
		key, _ := opOf(t, chunk.Items()[0])
		l.begin(key, true)
		defer l.begin(key, false)
		for _, item := range chunk.Items() {
			key, number := opOf(t, item)
			if _, again := seen.LoadOrStore(item.Key, true); !again && number%7 == 3 {
				item.Retry("not_yet", "later")
				return nil // what follows is left out, and comes again
			}
			l.take(key, number)
			item.Reply(nodetest.Statement{Of: item.In.ID})
		}
		return nil
	}, endpoints.Concurrency(8))
	b.gather(t, "ordered", func(s *collectorstore.CollectorSpec) { s.Strict, s.MaxSize, s.MaxAttempts = true, 10, 100 })
	const keys, each = 8, 30
	for i := range 6 {
		b.addOps(t, "ordered", i*keys*each/6, keys*each/6, keys)
	}
	b.Await(t, "everything is flushed", noOps)
	l.check(t, keys*each)
}

// A reply that ends half-way, an operation that never succeeds, and one that kills every request it is in.
func TestBadOperationsAreFoundAndParked(t *testing.T) {
	t.Parallel()
	const timeout = 700 * time.Millisecond
	b := setup(t)
	b.Serve(t, "bad", func(ctx context.Context, chunk *nodetest.Chunk) error {
		for _, item := range chunk.Items() {
			switch item.Key {
			case "op4":
				item.Retry("flaky", "no")
			case "op5":
				select { // its reply comes when no one waits for it any more
				case <-time.After(2 * timeout):
				case <-ctx.Done():
				}
				return nil
			default:
				item.Reply(nodetest.Statement{Of: item.In.ID})
			}
		}
		return nil
	}, endpoints.Concurrency(4))
	b.gather(t, "bad", func(s *collectorstore.CollectorSpec) {
		// An innocent operation that a slow machine keeps waiting has more tries; others come through between two of them.
		s.Timeout, s.MaxAttempts = collectorstore.Span(timeout), 3
		s.Backoff, s.MaxBackoff = collectorstore.Span(100*time.Millisecond), collectorstore.Span(100*time.Millisecond)
	})
	b.addOps(t, "bad", 0, 8, 2)
	// Others come through meanwhile: else what is not answered might be an outage, for which no one is to blame.
	others := 0
	nodetest.Until(t, "the operation that is never answered is parked", func() (met bool) {
		var through bool
		testenv.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE key = 'k2') = 0,
			count(*) FILTER (WHERE op_id = 'op5' AND parked_at IS NOT NULL) = 1 FROM collector_op`).Scan(&through,
			&met))
		if through && !met {
			others++
			b.addOps(t, "bad", 1000*others+2, 1, 1000)
		}
		return met
	})
	b.Await(t, "all but the two bad ones succeed, and those are parked", `SELECT count(*) = 2
		AND bool_and(parked_at IS NOT NULL AND op_id IN ('op4', 'op5')) FROM collector_op`)
	v, err := collectorstore.New(b.Store).Collector(t.Context(), "bad")
	if err != nil || v.Parked != 2 || v.Waiting+v.Backoff != 0 {
		t.Fatalf("the collector is %+v, %v", v, err)
	}
}

// A node crashes while a service works on its flushes. Another one takes its keys when its session ends: nothing is
// lost, what was asked is asked again, and nothing overtakes anything.
func TestANodeCrashesInMidFlush(t *testing.T) {
	t.Parallel()
	const keys, each, size = 24, 30, 6
	b := &bundle{nodetest.ServersOnly(t)}
	var mu sync.Mutex
	next, sent, again := [keys]int{}, 0, 0
	stuck, wake := make(chan struct{}), make(chan struct{})
	take := func(key, number int) (stays bool) {
		mu.Lock()
		defer mu.Unlock()
		if number > next[key] {
			t.Errorf("key %d: number %d when %d was next", key, number, next[key])
		} else if number < next[key] {
			again++
		}
		next[key] = max(next[key], number+1)
		if sent++; sent == 200 {
			close(stuck)
		}
		return sent >= 200
	}
	b.Serve(t, "flushed", func(_ context.Context, chunk *nodetest.Chunk) error {
		for _, item := range chunk.Items() {
			if take(opOf(t, item)) {
				<-wake
			}
			item.Reply(nodetest.Statement{Of: item.In.ID})
		}
		return nil
	}, endpoints.Concurrency(16))
	first := b.Doom(t)
	first.Start(t, "", 1, orchestrator.Config{})
	b.Node = first.Node
	b.gather(t, "flushed", func(s *collectorstore.CollectorSpec) {
		s.MinSize, s.MaxSize, s.InFlight = 3, size, 16
		s.Timeout = collectorstore.Span(10 * time.Minute) // what comes again comes with the session
	})
	b.addOps(t, "flushed", 0, keys*each, keys)
	<-stuck
	b.Await(t, "it waits for the service", `SELECT count(*) >= 8 FROM collector_key WHERE flush IS NOT NULL`)
	first.Crash()
	held := b.Number(t, `SELECT count(*) FROM collector_key WHERE session_id = $1`, first.Session())
	close(wake)
	first.Await(t, b.Bundle)
	b.StartNode(t)
	b.Await(t, "everything is flushed", noOps)
	mu.Lock()
	defer mu.Unlock()
	if sent-again != keys*each || again == 0 || again > held*size {
		t.Errorf("%d operations were carried out, %d of them again; it held %d keys, of %d at most", sent, again, held, size)
	}
}

// Producers add while the number of partitions changes: each value is still worked in its order, one flush at
// a time, though its operations belong to several keys by then.
func TestPartitionsChangeUnderLoad(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.StartNode(t)
	l := newLedgerOfKeys()
	b.Serve(t, "spread", func(_ context.Context, chunk *nodetest.Chunk) error {
		at := map[int]bool{}
		for _, item := range chunk.Items() {
			if value, _ := opOf(t, item); !at[value] {
				at[value] = true
				l.begin(value, true)
			}
		}
		defer func() {
			for value := range at {
				l.begin(value, false)
			}
		}()
		for _, item := range chunk.Items() {
			value, number := opOf(t, item)
			l.take(value, number)
			item.Reply(nodetest.Statement{Of: item.In.ID})
		}
		return nil
	}, endpoints.Concurrency(8))
	into := func(partitions int) func(*collectorstore.CollectorSpec) {
		return func(s *collectorstore.CollectorSpec) {
			s.MaxSize, s.OrderBy = 10, &collectorstore.OpKeying{Field: "owner", Partitions: partitions}
		}
	}
	b.gather(t, "spread", into(7))
	const values, each, changes = 6, 25, 3
	var adding sync.WaitGroup
	added := make(chan struct{}, values*each)
	for value := range values {
		adding.Go(func() {
			for number := range each {
				b.addKeyed(t, "spread", value, number)
				added <- struct{}{}
			}
		})
	}
	for i := range changes {
		for range values * each / (changes + 1) {
			<-added
		}
		b.gather(t, "spread", into(2+3*i))
	}
	adding.Wait()
	b.Await(t, "everything is flushed", noOps)
	l.check(t, values*each)
}

// addKeyed adds an operation as producers do: under the key that the definition of the moment makes of it.
func (b *bundle) addKeyed(t *testing.T, name string, value, number int) {
	t.Helper()
	for {
		spec, version, _, err := collectorstore.New(b.Store).CollectorSpecOf(t.Context(), name)
		if err != nil {
			t.Error(err)
			return
		}
		op := collectorstore.Op{ID: fmt.Sprint(value, "/", number),
			Payload: fmt.Appendf(nil, `{"id":"%d %d"}`, value, number)}
		op.Key = fmt.Sprint(order.Partition(fmt.Sprint("v", value), spec.OrderBy.Partitions))
		_, err = b.Node.Collectors().AddOps(t.Context(), name, version, [][]collectorstore.Op{{op}})
		if _, moved := errors.AsType[*collectorstore.MovedError](err); moved {
			continue
		}
		testenv.NoError(t, err)
		return
	}
}
