package workqueue_test

import (
	"errors"
	"strconv"
	"testing"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

func TestQuarantineView(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 1)
	for i := range 7 {
		q := deadletter.Quarantined{Reason: "json", Detail: strconv.Itoa(i), Subject: "s", Body: []byte("body"),
			Headers: map[string][]string{"A": {"b"}}}
		if i%2 == 0 {
			q.Run, q.Slice = uuid.UUID(run), uuid.New()
		}
		if err := deadletter.New(b.Store).Quarantine(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	var details string
	f := deadletter.QuarantineFilter{Run: run, Limit: 3}
	var last deadletter.QuarantinedView
	for {
		page, err := deadletter.New(b.Store).QuarantinedMessages(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range page.Messages {
			details, last = details+m.Detail, m
		}
		if f.After = page.Next; page.Next == 0 {
			break
		}
	}
	if details != "6420" || last.Body != nil || last.Size != 4 || *last.Run != run || last.Slice == nil {
		t.Errorf("messages %s, the last is %+v; want 6420 without bodies", details, last)
	}
	page, err := deadletter.New(b.Store).QuarantinedMessages(t.Context(), deadletter.QuarantineFilter{})
	if err != nil || len(page.Messages) != 7 || page.Messages[1].Run != nil {
		t.Errorf("%d messages of all runs, %v", len(page.Messages), err)
	}
	one, err := deadletter.New(b.Store).QuarantinedMessage(t.Context(), last.ID)
	if err != nil || string(one.Body) != "body" || one.Headers["A"][0] != "b" || one.Reason != "json" {
		t.Errorf("one message: %+v, %v", one, err)
	}
	if _, err := deadletter.New(b.Store).QuarantinedMessage(t.Context(), 1<<40); !errors.Is(err, workqueue.ErrNotFound) {
		t.Errorf("got %v; want ErrNotFound", err)
	}
	if view, err := inspect.New(b.Store).Run(t.Context(), run); err != nil || view.Quarantined != 4 {
		t.Errorf("the run has %d quarantined messages, %v; want 4", view.Quarantined, err)
	}
}

func TestQuarantineOfAnEmptyMessage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if err := deadletter.New(b.Store).Quarantine(t.Context(),
		deadletter.Quarantined{Reason: "json", Subject: "s"}); err != nil {
		t.Fatal(err)
	}
	page, err := deadletter.New(b.Store).QuarantinedMessages(t.Context(), deadletter.QuarantineFilter{})
	if err != nil || len(page.Messages) != 1 || page.Messages[0].Size != 0 {
		t.Errorf("%+v, %v; want one message of no bytes", page.Messages, err)
	}
}
