package pginbox_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/endpointstest"
	"github.com/tranchehq/tranche/endpoints/pginbox"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestRedeliveredChunkAnswersFromMemory(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.kit.Serve(func(svc *endpoints.Service) error {
		return endpoints.HandleList(svc, "book", func(ctx context.Context, c *endpoints.Chunk[string, any]) error {
			if _, err := pginbox.Tx(ctx).Exec(ctx, writeEffects, c.Keys()); err != nil {
				return err
			}
			c.Items()[0].Reply(map[string]string{"name": c.Items()[0].In})
			c.Items()[1].Reply(wire.Binary{ContentType: "application/pdf", Data: []byte{0, 1, 0xff}})
			c.Items()[2].Fail("closed", "account %q is closed", c.Items()[2].Key)
			c.Items()[3].Reply(nil)
			c.Items()[4].Reply(wire.Binary{Data: []byte{}})
			return nil
		}, endpoints.Wrap(b.inbox.Once()))
	})
	first := b.kit.Send("book", items(5)...)
	if len(first.Slots) != 5 || first.Failure != nil {
		t.Fatalf("got %+v", first)
	}
	same(t, first, b.kit.Redeliver(first.Request))
	same(t, first, b.kit.Reissue(first.Request))
	testenv.Same(t, b.written(), 5, "effects of 5 items")
}

func TestOtherItemsAreNotConfused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.kit.Serve(func(svc *endpoints.Service) error {
		for _, endpoint := range []string{"book", "other"} {
			if err := endpoints.HandleList(svc, endpoint, book, endpoints.Wrap(b.inbox.Once())); err != nil {
				return err
			}
		}
		return nil
	})
	first := b.kit.Send("book", items(2)...)
	with := func(change func(*wire.Meta)) []endpointstest.Part {
		return append(items(2), endpointstest.Meta(func(m *wire.Meta) {
			m.Run = first.Request.Run
			change(m)
		}))
	}
	n := 2
	for what, reply := range map[string]*endpointstest.Reply{
		"generation": b.kit.Send("book", with(func(m *wire.Meta) { m.Generation = 2 })...),
		"step":       b.kit.Send("book", with(func(m *wire.Meta) { m.Step = 1 })...),
		"run":        b.kit.Send("book", items(2)...),
		"endpoint":   b.kit.Send("other", with(func(*wire.Meta) {})...),
		"item key": b.kit.Send("book", append(with(func(*wire.Meta) {})[2:], endpointstest.Item("L0", "in 0"),
			endpointstest.Item("longer than an index takes:"+fmt.Sprint(rand.Perm(2000)), "in 1"))...),
	} {
		n += 2
		testenv.Same(t, len(reply.Slots), 2, "another %s: %+v", what, reply)
	}
	same(t, first, b.kit.Redeliver(first.Request))
	testenv.Same(t, b.written(), n, "effects")
}

func TestConcurrentDeliveries(t *testing.T) {
	t.Parallel()
	b := setup(t)
	entered, release := make(chan struct{}, 4), make(chan struct{})
	handler := func(ctx context.Context, c *chunk) error {
		entered <- struct{}{}
		<-release
		return book(ctx, c)
	}
	b.serve(handler)
	b.serve(handler)
	first := b.kit.Post("book", items(3)...)
	<-entered
	second := b.kit.PostAgain(first.Request)
	b.blocked(1) // the second delivery waits for the first
	close(release)
	same(t, first.Wait(), second.Wait())
	if len(entered) != 0 || b.written() != 3 {
		t.Errorf("the handler was entered %d times more; %d effects", len(entered), b.written())
	}
}

// blocked waits until n backends wait for another one's transaction.
func (b *bundle) blocked(n int) {
	b.t.Helper()
	b.await("backends wait", func() bool {
		return b.count(`SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`) >= n
	})
}

func (b *bundle) await(what string, ok func() bool) {
	b.t.Helper()
	testenv.Until(b.t, patience, what, ok)
}

func TestFailuresLeaveNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`CREATE TABLE parents (id int PRIMARY KEY);
		CREATE TABLE children (parent int REFERENCES parents DEFERRABLE INITIALLY DEFERRED)`)
	type end struct {
		name, code string
		do         func(context.Context) error
	}
	ends := []end{
		{name: "error", code: wire.CodeHandlerError, do: func(context.Context) error { return errHandler }},
		{name: "fail", code: "refused", do: func(context.Context) error { return endpoints.Fail("refused", "no") }},
		{name: "panic", code: wire.CodePanic, do: func(context.Context) error { panic("no") }},
		{name: "late", code: wire.CodeTimeout, do: func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		}},
		{name: "commit", code: pginbox.CodeInbox, do: func(ctx context.Context) error {
			_, err := pginbox.Tx(ctx).Exec(ctx, `INSERT INTO children VALUES (1)`)
			return err
		}},
		{name: "lost", code: pginbox.CodeInbox, do: func(ctx context.Context) error {
			_, _ = pginbox.Tx(ctx).Exec(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
			return nil
		}},
		{name: "swallowed", code: pginbox.CodeInbox, do: func(ctx context.Context) error {
			_, _ = pginbox.Tx(ctx).Exec(ctx, `SELECT 1/0`)
			return nil
		}},
	}
	var fine atomic.Bool
	b.kit.Serve(func(svc *endpoints.Service) error {
		for _, end := range ends {
			timeout := time.Minute
			if end.name == "late" {
				timeout = time.Second
			}
			err := endpoints.HandleList(svc, end.name, func(ctx context.Context, c *chunk) error {
				if err := book(ctx, c); err != nil || fine.Load() {
					return err
				}
				return end.do(ctx)
			}, endpoints.Wrap(b.inbox.Once()), endpoints.Timeout(timeout))
			if err != nil {
				return err
			}
		}
		return nil
	})
	replies := map[string]*endpointstest.Reply{}
	for _, end := range ends {
		reply := b.kit.Send(end.name, items(3)...)
		if len(reply.Slots) != 0 || reply.Failure == nil || reply.Failure.Code != end.code ||
			reply.Failure.Retry != (end.name != "fail") {
			t.Errorf("%s: %d slots, failure %v", end.name, len(reply.Slots), reply.Failure)
		}
		replies[end.name] = reply
	}
	if b.written() != 0 || b.remembered() != 0 {
		t.Errorf("%d effects and %d answers were committed", b.written(), b.remembered())
	}
	fine.Store(true)
	for name, reply := range replies {
		b.await(name+" succeeds", func() bool { // on a machine that is stalled it may be late again
			return len(b.kit.Reissue(reply.Request).Slots) == 3
		})
	}
	testenv.Same(t, b.written(), 3*len(ends), "effects")
}

// slowClaims has each claim take a while, so that chunks claim at the same time.
const slowClaims = `
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.001); RETURN NEW; END';
CREATE TRIGGER slow BEFORE INSERT ON tranche_inbox FOR EACH ROW EXECUTE FUNCTION slow()`

// TestOverlapsInAnyOrder sends chunks that overlap, with the items in opposite orders, at the same time.
func TestOverlapsInAnyOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(slowClaims)
	for range 3 {
		b.serve(book, endpoints.Concurrency(4))
	}
	const size = 100
	base := b.kit.Send("book", endpointstest.ItemAt(size+1, "base", "in base"))
	parts := make([]endpointstest.Part, size)
	for i := range parts {
		parts[i] = endpointstest.ItemAt(i, fmt.Sprintf("K%d", i), fmt.Sprintf("in %d", i))
	}
	meta := endpointstest.Meta(func(m *wire.Meta) { m.Run = base.Request.Run })
	var pending []*endpointstest.Pending
	for n := range 8 {
		chunk := slices.Clone(parts[n*4 : size-n*4])
		if n%2 == 1 {
			slices.Reverse(chunk)
		}
		pending = append(pending, b.kit.Post("book", append(chunk, meta)...))
	}
	for _, p := range pending {
		if reply := p.Wait(); reply.Failure != nil || len(reply.LeftOut()) > 0 {
			t.Errorf("%d left out, failure %v", len(reply.LeftOut()), reply.Failure)
		}
	}
	testenv.Same(t, b.written(), size+1, "effects of all items")
}

func TestBiggestChunk(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.serve(func(ctx context.Context, c *chunk) error {
		if err := book(ctx, c); err != nil {
			return err
		}
		c.Flush() // which must not let answers out before the commit
		testenv.Same(t, b.written(), 0, "the effects are visible before the commit")
		return nil
	}, endpoints.FlushBytes(1000))
	parts := make([]endpointstest.Part, 8192)
	for i := range parts {
		parts[i] = endpointstest.Item(fmt.Sprintf("K%d", i), "x")
	}
	first := b.kit.Send("book", parts...)
	testenv.MustSame(t, len(first.Slots), 8192, "slots, failure %v", first.Failure)
	same(t, first, b.kit.Redeliver(first.Request))
	testenv.Same(t, b.written(), 8192, "effects")
}

func TestHandleEachIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.kit.Serve(func(svc *endpoints.Service) error {
		return endpoints.HandleEach(svc, "each", func(context.Context, string) (string, error) {
			t.Error("the handler was called")
			return "", nil
		}, endpoints.Wrap(b.inbox.Once()))
	})
	reply := b.kit.Send("each", items(2)...)
	if err := reply.Err("K1"); err == nil || err.Code != pginbox.CodeNeedsList || err.Retry || len(reply.Slots) != 2 {
		t.Errorf("got %+v", reply)
	}
}

func TestOnlyTheInboxEndsTheTransaction(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.serve(func(ctx context.Context, c *chunk) error {
		tx := pginbox.Tx(ctx)
		if tx.Commit(ctx) == nil || tx.Rollback(ctx) == nil {
			t.Error("the handler could end the transaction")
		}
		if pginbox.Done(ctx, 0) {
			t.Error("an item is done before it was begun")
		}
		return book(ctx, c)
	})
	testenv.Same(t, len(b.kit.Send("book", items(1)...).Slots), 1, "slots")
}

func TestTxOutsideOfAnInbox(t *testing.T) {
	t.Parallel()
	defer func() {
		if value := recover(); value == nil {
			t.Error("no panic")
		}
	}()
	if pginbox.Done(t.Context(), 0) {
		t.Error("done")
	}
	pginbox.Tx(t.Context())
}
