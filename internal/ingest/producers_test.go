package ingest_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/ingest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/database"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// limit is more than anything here takes on a busy machine.
const limit = 2 * time.Minute

type bench struct {
	*testing.T
	pool  *pgxpool.Pool
	store *database.DB
	adder *adder
	it    *ingest.Producers

	source func(sql string) // of what withSource made
}

// adder counts transactions, and may hold them up or refuse them.
type adder struct {
	store   *database.DB
	commits atomic.Int64
	before  func(batches [][]collector.Op) error // nil: nothing
}

func (a *adder) AddOps(
	ctx context.Context, name string, version int, batches [][]collector.Op,
) ([]collector.AddedOps, error) {
	a.commits.Add(1)
	if a.before != nil {
		if err := a.before(batches); err != nil {
			return nil, err
		}
	}
	out, _, err := collector.New(a.store).AddOps(ctx, name, version, batches)
	return out, err
}

func setup(t *testing.T) *bench {
	t.Helper()
	pool := testenv.Pool(t)
	store := database.New(pool)
	b := &bench{T: t, pool: pool, store: store, adder: &adder{store: store}}
	b.it = ingest.New(collector.New(store), b.adder, ingest.Sources{}, nil)
	b.apply("c", "endpoint: echo\n")
	return b
}

func (b *bench) apply(name, text string) {
	b.Helper()
	spec, err := ingest.Parse(name, []byte(text))
	if err == nil {
		_, err = collector.New(b.store).ApplyCollector(b.Context(), collector.Text{Name: name, Spec: *spec,
			Source: text}, "test")
	}
	testenv.NoError(b, err)
}

// keys counts the operations that are stored, by key.
func (b *bench) keys(name string) map[string]int {
	b.Helper()
	page := testenv.Must(collector.New(b.store).Ops(b.Context(), collector.OpsFilter{Collector: name}))(b)
	all := map[string]int{}
	for _, op := range page.Ops {
		all[op.Key]++
	}
	return all
}

func op(id string) io.Reader {
	return strings.NewReader(`{"id":"` + id + `","key":"k","payload":{"n":1}}`)
}

// Adds that come while a commit is in progress share the next one, and each is told of its own operations.
func TestAddsShareCommits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	begun, gate := make(chan struct{}), make(chan struct{})
	var first sync.Once
	b.adder.before = func([][]collector.Op) error {
		first.Do(func() { close(begun); <-gate })
		return nil
	}
	const others = 200
	var adding sync.WaitGroup
	var added, duplicates atomic.Int64
	add := func(id string) {
		done, err := b.it.AddFrom(t.Context(), "c", op(id))
		if err != nil || done.Added+done.Duplicates != 1 {
			t.Errorf("%s: %+v, %v", id, done, err)
		}
		added.Add(int64(done.Added))
		duplicates.Add(int64(done.Duplicates))
	}
	adding.Go(func() { add("first") })
	<-begun
	for i := range others {
		adding.Go(func() { add(fmt.Sprintf("op-%d", i/2)) }) // each id twice
	}
	testenv.Until(t, limit, "it comes about", func() bool { return ingest.Waiting(b.it, "c") == others })
	close(gate)
	adding.Wait()
	if added.Load() != 1+others/2 || duplicates.Load() != others/2 {
		t.Errorf("%d added, %d duplicates", added.Load(), duplicates.Load())
	}
	testenv.Same(t, b.adder.commits.Load(), 2, "transactions")
	testenv.Same(t, b.keys("c")["k"], 1+others/2, "stored")
	testenv.NoError(t, b.it.Wait(t.Context()))
}

// When PostgreSQL does not like what one add brought, the others of its commit continue.
func TestErrorsGoToWhomTheyBelong(t *testing.T) {
	t.Parallel()
	b := setup(t)
	begun, gate := make(chan struct{}), make(chan struct{})
	var first sync.Once
	b.adder.before = func(batches [][]collector.Op) error {
		first.Do(func() { close(begun); <-gate })
		for _, batch := range batches {
			if batch[0].ID == "bad" {
				return fmt.Errorf("add: %w", &pgconn.PgError{Code: "22021", Message: "a text that it does not take"})
			}
		}
		return nil
	}
	var adding sync.WaitGroup
	for i, id := range []string{"first", "a", "bad", "b", "c"} {
		adding.Go(func() {
			done, err := b.it.AddFrom(t.Context(), "c", op(id))
			if (id == "bad") != (err != nil) || err == nil && done.Added != 1 {
				t.Errorf("%s: %+v, %v", id, done, err)
			}
		})
		if i == 0 {
			<-begun
		}
	}
	testenv.Until(t, limit, "it comes about", func() bool { return ingest.Waiting(b.it, "c") == 4 })
	close(gate)
	adding.Wait()
	testenv.Same(t, b.keys("c")["k"], 4, "stored")
	testenv.Same(t, b.adder.commits.Load(), 1+1+4, "transactions")
}

// Keys are made for the definition of the moment, also when it has just changed.
func TestKeysFollowTheDefinition(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply("o", "endpoint: echo\norder_by: n\n")
	add := func() (collector.AddedOps, error) {
		return b.it.AddFrom(t.Context(), "o", strings.NewReader(`{"payload":{"n":"customer-7"}}`))
	}
	testenv.MustSame(t, testenv.Must(add())(t).Added, 1, "added")
	b.apply("o", "endpoint: echo\norder_by: n\npartitions: 100\n")
	testenv.MustSame(t, testenv.Must(add())(t).Added, 1, "added")
	if keys := b.keys("o"); keys["customer-7"] != 1 || keys["97/100"] != 1 || len(keys) != 2 {
		t.Errorf("keys: %v", keys)
	}
	testenv.Same(t, b.adder.commits.Load(), 3, "transactions")
}

// Who leaves does not break off what others share, and gives room back in the end.
func TestLeavingEarly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	begun, gate := make(chan struct{}), make(chan struct{})
	b.adder.before = func([][]collector.Op) error { close(begun); <-gate; return nil }
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := b.it.AddFrom(ctx, "c", strings.NewReader(`{"key":"k","payload":1}`))
		left <- err
	}()
	<-begun
	leave()
	testenv.Is(t, <-left, context.Canceled, "who leaves is told")
	if n := ingest.Held(b.it); n == 0 {
		t.Error("the operation is held, and no room was taken for it")
	}
	close(gate)
	testenv.Until(t, limit, "it comes about", func() bool { return ingest.Held(b.it) == 0 })
	testenv.Same(t, b.keys("c")["k"], 1, "stored")
}

func TestRoomIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.it.AddFrom(t.Context(), "c", endless{})
	_ = testenv.As[*ingest.TooManyError](t, err, "a body without an end")
	testenv.Same(t, ingest.Held(b.it), 0, "bytes are held after it")
	ingest.Hold(b.it, ingest.MaxHeld)
	_, err = b.it.AddFrom(t.Context(), "c", strings.NewReader(`{"key":"k","payload":1}`))
	_ = testenv.As[*ingest.OverloadedError](t, err, "without room")
}

// endless is spaces indefinitely.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}
