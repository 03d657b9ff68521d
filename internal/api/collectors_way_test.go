package api_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/ingest"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/collector"
)

// From producers over HTTP and NATS to a service, and back to those who look after what it could not do.
func TestOperationsReachTheirService(t *testing.T) {
	t.Parallel()
	e := apitest.SetupEngine(t)
	listener := testenv.Must(ingest.New(collector.New(e.Store), e.Node.Collectors(), nil, nil).Listen(e.Conn()))(t)
	t.Cleanup(func() {
		if err := listener.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	service := &booking{done: map[int]int{}, bad: 13}
	e.Serve(func(s *endpoints.Service) error { return endpoints.HandleList(s, "book", service.handle) })

	e.Post("/collectors?name=ledger", "endpoint: book\norder_by: account\nmin_size: 5\n"+
		"max_age: 100ms\nmax_attempts: 2\nbackoff: 50ms\nmax_backoff: 50ms\n", nil)
	var lines strings.Builder
	for n := range 20 {
		fmt.Fprintf(&lines, `{"id":"op-%d","payload":{"account":"A-%d","n":%d}}`+"\n", n, n%3, n)
	}
	var added api.AddedOperations
	e.Post("/collectors/ledger/ops?dry_run=true", lines.String(), &added)
	if !added.DryRun || added.Added != 20 || len(added.Sample) != 10 || added.Sample[4].Key != "A-1" {
		t.Errorf("a dry run: %+v", added)
	}
	e.UntilCollected("ledger", func(c *collector.CollectorView) bool { return c.Keys == 0 })
	added = api.AddedOperations{}
	e.Post("/collectors/ledger/ops", lines.String(), &added)
	if added.Added != 20 {
		t.Errorf("over HTTP: %+v", added)
	}
	p := testenv.Must(endpoints.NewProducer(e.Conn(), "ledger"))(t)
	for n := 15; n < 30; n++ { // some of them again
		done, err := p.Add(t.Context(), wire.Operation{ID: fmt.Sprint("op-", n),
			Payload: map[string]any{"account": fmt.Sprint("A-", n%3), "n": n}})
		if err != nil || done.Added+done.Duplicates != 1 || (done.Duplicates == 1) != (n < 20) {
			t.Errorf("over NATS, %d: %+v, %v", n, done, err)
		}
	}
	parked := e.UntilCollected("ledger", func(c *collector.CollectorView) bool {
		return c.Waiting+c.Backoff == 0 && c.Parked == 1
	})
	if len(parked.Why) != 1 || parked.Why[0].Code != "parked" {
		t.Errorf("with one operation that is parked: %+v", parked.Why)
	}
	service.check(t, 30, 13, 2)
	var page api.OperationPage
	e.Read("/collectors/ledger/ops?state=parked", &page)
	if len(page.Ops) != 1 || page.Ops[0].ID != "op-13" || page.Ops[0].Code != "UNLUCKY" || page.Ops[0].Attempts != 2 {
		t.Errorf("parked: %+v", page)
	}
	service.repair()
	e.Post("/collectors/ledger/requeue", `{"ids":["op-13"]}`, nil)
	e.UntilCollected("ledger", func(c *collector.CollectorView) bool { return c.Keys == 0 })
	service.check(t, 30, 13, 3)
}

// booking is a service that cannot do one number.
type booking struct {
	mu    sync.Mutex
	done  map[int]int // how often each number came
	order []int
	bad   int
}

type bookingIn struct {
	Account string `json:"account"`
	N       int    `json:"n"`
}

func (b *booking) handle(_ context.Context, chunk *endpoints.Chunk[bookingIn, apitest.Number]) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, item := range chunk.Items() {
		b.done[item.In.N]++
		b.order = append(b.order, item.In.N)
		if item.In.N == b.bad {
			item.Retry("UNLUCKY", "not this one")
			continue
		}
		item.Reply(apitest.Number{N: item.In.N})
	}
	return nil
}

func (b *booking) repair() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bad = -1
}

// check wants each number once, and in the order of its account, but for one that came more often.
func (b *booking) check(t *testing.T, numbers, odd, times int) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for n := range numbers {
		want := 1
		if n == odd {
			want = times
		}
		if b.done[n] != want {
			t.Errorf("%d came %d times; want %d", n, b.done[n], want)
		}
	}
	last := map[int]int{}
	for _, n := range b.order {
		if n == odd {
			continue
		}
		if before, ok := last[n%3]; ok && before > n {
			t.Errorf("%d came after %d", n, before)
		}
		last[n%3] = n
	}
}
