package endpointstest_test

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/endpointstest"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/internal/testing/testenv/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Check(m.Run())) }

// patience is that of tests which do not wait in vain: what a crash leaves behind may come after an AckWait only.
const patience = time.Minute

type account struct {
	Balance int `json:"balance"`
}

type statement struct {
	Closing int    `json:"closing"`
	Year    string `json:"year"`
}

func closeBooks(_ context.Context, chunk *endpoints.Chunk[account, statement]) error {
	for _, item := range chunk.Items() {
		switch {
		case item.In.Balance < 0:
			item.Fail("overdrawn", "the balance is %d", item.In.Balance)
		case item.In.Balance > 0:
			item.Reply(statement{Closing: item.In.Balance, Year: chunk.Param("year")})
		}
	}
	return nil
}

func serveBooks(svc *endpoints.Service) error {
	return endpoints.HandleList(svc, "books", closeBooks)
}

func TestSend(t *testing.T) {
	t.Parallel()
	kit := endpointstest.New(t, endpointstest.Timeout(patience))
	kit.Serve(serveBooks)
	reply := kit.Send("books", endpointstest.Param("year", "2026"),
		endpointstest.Item("A", account{Balance: 120}), endpointstest.Item("B", account{Balance: -3}),
		endpointstest.ItemAt(7, "C", account{}), endpointstest.Item("D", "no account"))
	testenv.Same(t, endpointstest.Result[statement](t, reply, "A"), (statement{Closing: 120, Year: "2026"}), "A")
	if err := reply.Err("B"); err == nil || err.Code != "overdrawn" || err.Retry {
		t.Errorf("B has error %v", err)
	}
	if err := reply.Err("D"); err == nil || err.Code != wire.CodeBadPayload {
		t.Errorf("D has error %v", err)
	}
	testenv.SameList(t, reply.LeftOut(), []string{"C"}, "left out")
	if slot, ok := reply.Slot("D"); !ok || slot.Ordinal != 8 || reply.Failure != nil || reply.Messages != 1 {
		t.Errorf("got %+v", reply)
	}
}

func TestRedeliverAndReissue(t *testing.T) {
	t.Parallel()
	kit := endpointstest.New(t, endpointstest.Timeout(patience))
	var calls atomic.Int32
	kit.Serve(func(svc *endpoints.Service) error {
		return endpoints.HandleList(svc, "count", func(_ context.Context, chunk *endpoints.Chunk[int, string]) error {
			call := calls.Add(1)
			for _, item := range chunk.Items() {
				item.Reply(fmt.Sprintf("%d/%d/%d", call, chunk.Meta().Attempt, item.In))
			}
			return nil
		})
	})
	first := kit.Send("count", endpointstest.Item("A", 1), endpointstest.Item("B", 2))
	again := kit.Redeliver(first.Request)
	next := kit.Reissue(first.Request, "B")
	for _, want := range []struct {
		reply       *endpointstest.Reply
		key, result string
	}{{first, "A", "1/1/1"}, {again, "A", "2/1/1"}, {again, "B", "2/1/2"}, {next, "B", "3/2/2"}} {
		testenv.Same(t, endpointstest.Result[string](t, want.reply, want.key), want.result, "%s", want.key)
	}
	if again.Request.Slice != first.Request.Slice || next.Request.Slice == first.Request.Slice || len(next.Slots) != 1 {
		t.Errorf("the slices are %v, %v, %v", first.Request.Slice, again.Request.Slice, next.Request.Slice)
	}
}

func TestKill(t *testing.T) {
	t.Parallel()
	kit := endpointstest.New(t, endpointstest.Timeout(patience))
	entered, release := make(chan struct{}, 2), make(chan struct{})
	slow := func(svc *endpoints.Service) error {
		return endpoints.HandleList(svc, "slow", func(_ context.Context, chunk *endpoints.Chunk[int, int]) error {
			entered <- struct{}{}
			<-release
			for _, item := range chunk.Items() {
				item.Reply(item.In)
			}
			return nil
		})
	}
	first := kit.Serve(slow)
	pending := kit.Post("slow", endpointstest.Item("A", 1))
	<-entered
	first.Kill()
	first.Restart()
	<-entered
	close(release)
	if reply := pending.Wait(); reply.Messages != 1 || len(reply.Slots) != 1 {
		t.Errorf("got %+v", reply)
	}
}

func TestStub(t *testing.T) {
	t.Parallel()
	kit := endpointstest.New(t, endpointstest.Timeout(patience))
	stub := kit.Stub("accounts", func(asked []endpointstest.Asked) ([]wire.Slot, error) {
		return []wire.Slot{
			asked[0].Answer(account{Balance: 5}), asked[1].Retry("busy", "later"), asked[2].Fail("gone", "no such account"),
			asked[3].Answer(wire.Binary{ContentType: "image/png", Data: []byte("png")}),
		}, endpoints.Retry("db_down", "no connection")
	})
	reply := kit.Send("accounts", endpointstest.Item("A", 1), endpointstest.Item("B", 2), endpointstest.Item("C", 3),
		endpointstest.Item("D", 4), endpointstest.Item("E", 5))
	testenv.Same(t, endpointstest.Result[account](t, reply, "A").Balance, 5, "A")
	testenv.Same(t, string(endpointstest.Result[wire.Binary](t, reply, "D").Data), "png", "D")
	for key, code := range map[string]string{"B": "busy", "C": "gone", "E": "db_down"} {
		if err := reply.Err(key); err == nil || err.Code != code || err.Retry != (key != "C") {
			t.Errorf("%s has error %v", key, err)
		}
	}
	requests := stub.Requests()
	if len(requests) != 1 || len(requests[0]) != 5 || requests[0][1].Key != "B" || string(requests[0][1].Payload) != "2" {
		t.Errorf("the stub was asked %+v", requests)
	}
}
