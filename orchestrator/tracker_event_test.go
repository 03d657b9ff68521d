package orchestrator_test

import (
	"encoding/json"
	"testing"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/bitfield/tracker/service"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/workqueue/tracker"
)

// TestTheEndOfATrackerIsPublished publishes the event of a tracker as it stands, on a subject that is not a run's.
func TestTheEndOfATrackerIsPublished(t *testing.T) {
	t.Parallel()
	b := setup(t)
	told, err := b.NC.SubscribeSync(wire.EventSubject(">"))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.NC.Flush(); err != nil {
		t.Fatal(err)
	}
	opened, err := tracker.New(b.Store).OpenTracker(t.Context(), service.OpenRequest{Owner: "billing", Key: "nov"}, "ann")
	if err != nil {
		t.Fatal(err)
	}
	if completed, err := tracker.New(b.Store).SealTracker(t.Context(), opened.ID, "ann"); err != nil || !completed {
		t.Fatal(completed, err)
	}
	b.Node.PublishEvents()
	msg, err := told.NextMsg(nodetest.Stuck)
	if err != nil {
		t.Fatal(err)
	}
	var body struct {
		ID    uuid.UUID
		Kind  string
		Batch uuid.UUID
		Owner string
		Key   string
	}
	if err := json.Unmarshal(msg.Data, &body); err != nil {
		t.Fatal(err)
	}
	if msg.Subject != "tranche.event.tracker.completed" || body.Kind != "tracker.completed" || body.Batch != opened.ID ||
		body.Owner != "billing" || body.Key != "nov" || body.ID.String() != msg.Header.Get("Nats-Msg-Id") {
		t.Errorf("on %s, as %s: %s", msg.Subject, msg.Header.Get("Nats-Msg-Id"), msg.Data)
	}
}
