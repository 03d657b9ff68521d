package pginbox_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/endpointstest"
	"github.com/tranchehq/tranche/endpoints/pginbox"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestNewValidates(t *testing.T) {
	t.Parallel()
	pool := testenv.Connect(t, testenv.EmptyDatabase(t))
	_, err := pginbox.New(nil, pginbox.Config{})
	testenv.Fails(t, err, "a nil pool was taken")
	for _, table := range []string{"a b", "a.b.c", `a"b`, "1a", strings.Repeat("x", 51), "a.", "täble"} {
		_, err := pginbox.New(pool, pginbox.Config{Table: table})
		testenv.Fails(t, err, "table %q was taken", table)
	}
}

func TestCreateInASchemaByManyAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`CREATE SCHEMA "Ledger"`)
	inbox := testenv.Must(pginbox.New(b.pool, pginbox.Config{Table: "Ledger.Seen"}))(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			testenv.Same(t, inbox.Create(t.Context()), nil, "creating the table")
		})
	}
	all.Wait()
	b.inbox = inbox
	b.serve(book)
	first := b.kit.Send("book", items(2)...)
	same(t, first, b.kit.Redeliver(first.Request))
	if n := b.count(`SELECT count(*) FROM "Ledger"."Seen"`); n != 2 || b.remembered() != 0 {
		t.Errorf("%d rows in the table", n)
	}
}

func TestPrune(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.serve(book)
	old := b.kit.Send("book", items(3)...)
	b.exec(`UPDATE tranche_inbox SET at = at - interval '40 days'`)
	recent := b.kit.Send("book", items(2)...)
	_, err := b.inbox.Prune(t.Context(), -time.Hour)
	testenv.Fails(t, err, "a negative age was taken")
	n := testenv.Must(b.inbox.Prune(t.Context(), 30*24*time.Hour))(t)
	if n != 3 || b.remembered() != 2 {
		t.Errorf("%d pruned, %d left", n, b.remembered())
	}
	b.kit.Redeliver(recent.Request)
	b.kit.Redeliver(old.Request) // redone: its memory is gone
	testenv.Same(t, b.written(), 8, "effects")
	n = testenv.Must(b.inbox.Prune(t.Context(), 0))(t)
	testenv.Same(t, n, 5, "rows pruned")
}

type transfer = endpoints.Stage[string, string, endpoints.None, endpoints.None]

var rates = endpoints.To[string, string]("rates")

// reserve writes an effect for each item that it has not written one for, and asks for a rate.
func reserve(ctx context.Context, s *transfer) error {
	for _, item := range s.Items() {
		if !pginbox.Done(ctx, item.Ordinal) {
			if _, err := pginbox.Tx(ctx).Exec(ctx, writeEffects, []string{"reserve " + item.Key}); err != nil {
				return err
			}
		}
		if item.Key == "K0" {
			item.Reply("nothing to transfer")
			continue
		}
		rates.Ask(item, item.In)
	}
	return nil
}

// settle writes another effect and answers.
func settle(ctx context.Context, s *transfer) error {
	for _, item := range s.Items() {
		if _, err := pginbox.Tx(ctx).Exec(ctx, writeEffects, []string{"settle " + item.Key}); err != nil {
			return err
		}
		item.Reply("at " + rates.Answer(item))
	}
	return nil
}

func (b *bundle) serveTransfer() *endpointstest.Instance {
	b.t.Helper()
	return b.kit.Serve(func(svc *endpoints.Service) error {
		return endpoints.HandleFlow(svc, "transfer", []func(context.Context, *transfer) error{reserve, settle},
			endpoints.Wrap(b.inbox.Once()))
	})
}

// checkTransfer fails the test unless each stage has written once for each item.
func (b *bundle) checkTransfer(reply *endpointstest.Reply) {
	b.t.Helper()
	if reply.Failure != nil || len(reply.Slots) != 3 {
		b.t.Fatalf("%d slots, failure %v", len(reply.Slots), reply.Failure)
	}
	testenv.Same(b.t, endpointstest.Result[string](b.t, reply, "K2"), "at rate of in 2", "K2")
	once := b.count(`SELECT count(*) FROM (SELECT account FROM effects GROUP BY account HAVING count(*) = 1) e`)
	if once != 5 || b.written() != 5 {
		b.t.Errorf("%d effects, %d of them once; want 5", b.written(), once)
	}
}

func rate(asked []endpointstest.Asked) ([]wire.Slot, error) {
	var slots []wire.Slot
	for _, item := range asked {
		var in string
		if err := item.Into(&in); err != nil {
			return nil, err
		}
		slots = append(slots, item.Answer("rate of "+in))
	}
	return slots, nil
}

func TestFlowStagesWriteOnce(t *testing.T) {
	t.Parallel()
	for name, point := range map[string]func(*endpointstest.Kit) *endpointstest.Kill{
		"none":             nil,
		"after stage 0":    func(k *endpointstest.Kit) *endpointstest.Kill { return k.KillBetween("transfer", 0) },
		"after stage 1":    func(k *endpointstest.Kit) *endpointstest.Kill { return k.KillBetween("transfer", 1) },
		"before the reply": func(k *endpointstest.Kit) *endpointstest.Kill { return k.KillBeforeReply("transfer") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.kit.Stub("rates", rate)
			var kill *endpointstest.Kill
			if point != nil {
				kill = point(b.kit)
			}
			b.serveTransfer()
			pending := b.kit.Post("transfer", items(3)...)
			if kill != nil {
				kill.Wait().Restart()
			}
			reply := pending.Wait()
			b.checkTransfer(reply)
			b.checkTransfer(b.kit.Reissue(reply.Request))
		})
	}
}

// commitWatch tells when a commit is about to be sent. It is a pgx.QueryTracer.
type commitWatch struct{ commits func() }

func (w commitWatch) TraceQueryStart(
	ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData,
) context.Context {
	if strings.EqualFold(data.SQL, "commit") {
		w.commits()
	}
	return ctx
}

func (commitWatch) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// through returns a pool on the bundle's database that goes through a proxy, which watch gets before each commit.
func (b *bundle) through(watch func(*testenv.Proxy)) *pgxpool.Pool {
	b.t.Helper()
	through, proxy := testenv.Through(b.t, b.pool.Config().ConnString())
	config := testenv.Must(pgxpool.ParseConfig(through))(b.t)
	config.ConnConfig.Tracer = commitWatch{commits: func() { watch(proxy) }}
	pool := testenv.Must(pgxpool.NewWithConfig(b.t.Context(), config))(b.t)
	b.t.Cleanup(pool.Close)
	return pool
}

// TestCommitOfUnknownOutcome has PostgreSQL commit, and the service never hear of it.
func TestCommitOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var lost atomic.Bool
	var healing sync.WaitGroup
	t.Cleanup(healing.Wait)
	pool := b.through(func(proxy *testenv.Proxy) {
		if lost.Swap(true) {
			return
		}
		proxy.Stall(testenv.Down)
		healing.Go(func() {
			b.await("the commit is there", func() bool {
				n, err := b.tryCount(countEffects)
				return err == nil && n == 3
			})
			proxy.Cut()
			proxy.Heal()
		})
	})
	inbox := testenv.Must(pginbox.New(pool, pginbox.Config{}))(t)
	b.inbox = inbox
	b.serve(book)
	reply := b.kit.Send("book", items(3)...)
	if reply.Failure == nil || reply.Failure.Code != pginbox.CodeInbox || !reply.Failure.Retry || len(reply.Slots) > 0 {
		t.Fatalf("got %+v", reply)
	}
	healing.Wait()
	again := b.kit.Reissue(reply.Request)
	if len(again.Slots) != 3 || again.Failure != nil || b.written() != 3 {
		t.Errorf("again: %+v; %d effects", again, b.written())
	}
}

// TestWaitingEndsWithTheChunk has a delivery run out of time while it waits for the one before it.
func TestWaitingEndsWithTheChunk(t *testing.T) {
	t.Parallel()
	b := setup(t)
	entered, release := make(chan struct{}, 1), make(chan struct{})
	slow := b.serve(func(ctx context.Context, c *chunk) error {
		entered <- struct{}{}
		<-release
		return book(ctx, c)
	}, endpoints.Concurrency(1))
	first := b.kit.Post("book", items(1)...)
	<-entered
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		slow.Stop() // it takes no more, and stays at what it has
	}()
	b.serve(book, endpoints.Timeout(time.Second))
	late := b.kit.PostAgain(first.Request).Wait()
	if late.Failure == nil || late.Failure.Code != wire.CodeTimeout || !late.Failure.Retry {
		t.Errorf("the delivery that waited ended with %+v", late)
	}
	close(release)
	<-stopped
	testenv.Same(t, b.written(), 1, "effects")
}
