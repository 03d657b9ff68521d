package pginbox_test

import (
	"context"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/pginbox"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

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
func (b *bundle) through(watch func(*testenv.Proxy)) (*pgxpool.Pool, *testenv.Proxy) {
	b.t.Helper()
	config := b.pool.Config()
	host, port := config.ConnConfig.Host, strconv.Itoa(int(config.ConnConfig.Port))
	target := net.JoinHostPort(host, port)
	if strings.HasPrefix(host, "/") {
		target = filepath.Join(host, ".s.PGSQL."+port)
	}
	proxy := testenv.NewProxy(b.t, target)
	address, text, err := net.SplitHostPort(proxy.Addr())
	check(b.t, err)
	number := testenv.Must(strconv.ParseUint(text, 10, 16))(b.t)
	config.ConnConfig.Host, config.ConnConfig.Port = address, uint16(number)
	config.ConnConfig.TLSConfig, config.ConnConfig.Fallbacks = nil, nil
	config.ConnConfig.Tracer = commitWatch{commits: func() { watch(proxy) }}
	pool := testenv.Must(pgxpool.NewWithConfig(b.t.Context(), config))(b.t)
	b.t.Cleanup(pool.Close)
	return pool, proxy
}

// TestCommitOfUnknownOutcome has PostgreSQL commit, and the service never hear of it.
func TestCommitOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var lost atomic.Bool
	var healing sync.WaitGroup
	t.Cleanup(healing.Wait)
	pool, _ := b.through(func(proxy *testenv.Proxy) {
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
	if n := b.written(); n != 1 {
		t.Errorf("%d effects", n)
	}
}
