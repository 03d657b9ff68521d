package workqueue_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/inspect"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
)

func (b *bench) audit(f inspect.AuditFilter) inspect.AuditPage {
	b.Helper()
	page, err := inspect.New(b.Store).Audit(b.Context(), f)
	if err != nil {
		b.Fatal(err)
	}
	return page
}

func TestAudit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if page := b.audit(inspect.AuditFilter{}); len(page.Entries) != 0 || page.Next != 0 {
		t.Errorf("before anything was done: %+v", page)
	}
	first, second := b.Load(storetest.Request(), 1), b.Load(storetest.Request(), 1)
	for _, run := range []workqueue.RunID{first, second} {
		if _, err := control.New(b.Store).Cancel(t.Context(), control.Control{Run: run, Actor: "ann\x1b[31m"}); err != nil {
			t.Fatal(err)
		}
	}
	set := pacestore.EndpointChange{Endpoint: storetest.Endpoint, Concurrency: new(3)}
	if _, err := pacestore.New(b.Store).ChangeEndpoint(t.Context(), set, "bob"); err != nil {
		t.Fatal(err)
	}
	all := b.audit(inspect.AuditFilter{})
	if len(all.Entries) != 5 || all.Next != 0 || all.Entries[0].Action != "endpoint_set" ||
		all.Entries[0].Subject != storetest.Endpoint || all.Entries[0].Run != nil || all.Entries[4].Action != "start" {
		t.Fatalf("all there is: %+v", all)
	}
	for name, c := range map[string]struct {
		filter inspect.AuditFilter
		want   int
	}{
		"a run":            {inspect.AuditFilter{Run: first}, 2},
		"an actor":         {inspect.AuditFilter{Actor: "bob"}, 1},
		"an action":        {inspect.AuditFilter{Action: "cancel"}, 2},
		"both":             {inspect.AuditFilter{Action: "cancel", Actor: "bob"}, 0},
		"since":            {inspect.AuditFilter{Since: all.Entries[1].At}, 2},
		"in the future":    {inspect.AuditFilter{Since: time.Now().Add(time.Hour)}, 0},
		"an unknown run":   {inspect.AuditFilter{Run: workqueue.NewRunID()}, 0},
		"an odd actor":     {inspect.AuditFilter{Actor: "a\x00\xff"}, 0},
		"an hostile actor": {inspect.AuditFilter{Actor: "ann\x1b[31m"}, 2},
	} {
		if got := b.audit(c.filter); len(got.Entries) != c.want {
			t.Errorf("%s: %d entries; want %d", name, len(got.Entries), c.want)
		}
	}
	var paged []inspect.AuditEntry
	for f := (inspect.AuditFilter{Limit: 2}); ; {
		page := b.audit(f)
		paged = append(paged, page.Entries...)
		if f.Before = page.Next; page.Next == 0 {
			break
		}
	}
	if len(paged) != 5 {
		t.Errorf("in pages there are %d entries; want 5", len(paged))
	}
	for i := range paged {
		if paged[i].ID != all.Entries[i].ID {
			t.Errorf("entry %d is %d; want %d", i, paged[i].ID, all.Entries[i].ID)
		}
	}
}

// Whatever an operator changes has a row that says what was before and what is now.
// What a run starts with is on record, although it may be set otherwise later.
func TestStartIsAuditedWithSettings(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Chunked(7)
	req.MaxFailed, req.Priority, req.PlanVersion = "1%", 3, 4
	req.Steps[0].InFlightAuto, req.Steps[0].NeverRetry = true, []string{"BAD", "WORSE"}
	run := b.Load(req, 20)
	entry := b.audit(inspect.AuditFilter{Run: run, Action: "start"}).Entries[0]
	var after map[string]any
	if err := json.Unmarshal(entry.After, &after); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]any{
		"plan": req.Plan, "version": 4.0, "items": 20.0, "chunk": "7", "max_failed": "1%", "priority": 3.0,
		"never_retry": "BAD, WORSE", "endpoint": storetest.Endpoint, "canary": nil, "rate": nil,
	} {
		if fmt.Sprint(after[name]) != fmt.Sprint(want) {
			t.Errorf("%s is %v; want %v", name, after[name], want)
		}
	}
	if flight := fmt.Sprint(after["in_flight"]); !strings.HasPrefix(flight, "auto") {
		t.Errorf("in flight is %s; want auto", flight)
	}
}

// A canary that passes by itself was sampling before, and the run was what it let go.
func TestACanaryThatPassesIsAudited(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.withCanary(100, 10, true, "")
	b.Finish(run)
	b.wantCanary(run, control.CanaryPassed)
	entry := b.audit(inspect.AuditFilter{Run: run, Action: "approve"}).Entries[0]
	if entry.Actor != workqueue.Engine || !strings.Contains(string(entry.Before), `"sampling"`) ||
		!strings.Contains(string(entry.After), `"passed"`) {
		t.Errorf("%s, from %s to %s", entry.Actor, entry.Before, entry.After)
	}
}
