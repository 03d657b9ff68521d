package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/workqueue/collector"
)

// Ten updates of each customer, of whom several share a key, are one operation each, made of what is to be stored.
func TestUpdatesAreFoldedAndMadeOfWhatIsStored(t *testing.T) {
	t.Parallel()
	e := apitest.SetupEngine(t)
	var mu sync.Mutex
	var flushes [][]string
	e.Serve(func(s *endpoints.Service) error {
		handle := func(_ context.Context, chunk *endpoints.Chunk[json.RawMessage, apitest.Number]) error {
			mu.Lock()
			defer mu.Unlock()
			var flush []string
			for _, item := range chunk.Items() {
				flush = append(flush, item.Key+" "+string(item.In))
				if item.Key == "op-39" && len(flushes) == 0 {
					item.Fail("CLOSED", "the account is closed")
					continue
				}
				item.Reply(apitest.Number{})
			}
			flushes = append(flushes, flush)
			return nil
		}
		return endpoints.HandleList(s, "crm", handle)
	})
	e.Post("/collectors?name=crm", `endpoint: crm
order_by: customer.id
partitions: 1
fold: merge
max_age: 50ms
enrich: {payload: {customer: "{item.customer.id}", set: "{item.set}"}}
`, nil)
	e.Post("/collectors/crm/pause", "", nil)
	var lines strings.Builder
	for n := range 40 {
		fmt.Fprintf(&lines, `{"id":"op-%d","payload":{"customer":{"id":%d},"set":{"f%d":%d}}}`+"\n", n, n%4, n/4%3, n)
	}
	e.Post("/collectors/crm/ops", lines.String(), nil)
	var page api.OperationPage
	e.Read("/collectors/crm/ops?limit=1", &page)
	if op := page.Ops[0]; op.Fold != "0" || op.Key != "0/1" || string(op.Payload) != `{"customer":0,"set":{"f0":0}}` {
		t.Errorf("stored %+v, %s", op, op.Payload)
	}
	e.Post("/collectors/crm/resume", "", nil)
	e.UntilCollected("crm", func(c *collector.CollectorView) bool { return c.Waiting+c.Backoff == 0 && c.Parked == 10 })
	mu.Lock()
	want := `op-36 {"customer":0,"set":{"f0":36,"f1":28,"f2":32}} op-37 {"customer":1,"set":{"f0":37,"f1":29,"f2":33}} ` +
		`op-38 {"customer":2,"set":{"f0":38,"f1":30,"f2":34}} op-39 {"customer":3,"set":{"f0":39,"f1":31,"f2":35}}`
	if got := strings.Join(flushes[0], " "); len(flushes) != 1 || got != want {
		t.Errorf("%d flushes, the first of\n%s; want\n%s", len(flushes), got, want)
	}
	mu.Unlock()
	e.Read("/collectors/crm/ops?state=parked", &page)
	for i, op := range page.Ops {
		if head := i == 9; op.Code != "CLOSED" || head != (op.FoldedInto == "") || !head && op.FoldedInto != "op-39" {
			t.Errorf("parked: %+v", op)
		}
	}
	var requeued api.RequeuedOperations
	e.Post("/collectors/crm/requeue", `{"ids":["op-3"]}`, &requeued)
	if requeued.Requeued != 10 {
		t.Errorf("requeued %d; they go as one", requeued.Requeued)
	}
	e.UntilCollected("crm", func(c *collector.CollectorView) bool { return c.Keys == 0 })
	mu.Lock()
	defer mu.Unlock()
	if len(flushes) != 2 || len(flushes[1]) != 1 {
		t.Errorf("flushed %v", flushes)
	}
}
