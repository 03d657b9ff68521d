package streams_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/deadletter"
)

// A letter is written, taken in, sent again and written again, and a suspect leaves its marks.
func TestDocumentedPermissionsAreEnoughForBadRequests(t *testing.T) {
	t.Parallel()
	g := setupGuarded(t, documented(t))
	nodetest.WantReady(t, g.Node)
	web := g.conn(t, "web")
	var slot *wire.SlotError
	_, err := endpoints.Call[string, nodetest.Statement](t.Context(), web, "accounts", "C1", "no account",
		endpoints.CallerName("web"))
	if !errors.As(err, &slot) || slot.Code != "bad_payload" {
		t.Errorf("the call ended with %v", err)
	}
	g.Buried(t, 1)
	out, err := g.Node.DeadLetters().Requeue(t.Context(), deadletter.DeadSelection{All: true}, "ann")
	if err != nil || out.Requeued != 1 {
		t.Fatalf("requeued: %+v, %v", out, err)
	}
	g.Buried(t, 2)

	to := wire.Return{Asker: "web", Call: "token", Callee: "accounts"}
	answers, err := web.SubscribeSync("tranche.call.web.token.>")
	if err == nil {
		err = web.FlushTimeout(nodetest.Stuck)
	}
	testenv.NoError(t, err)
	suspect := wire.NewRequestBuilder("accounts", wire.Meta{Run: uuid.New(), Slice: uuid.New(), Attempt: 1,
		Generation: 1, Mode: wire.ModeBatch, ReplyTo: to, Deliveries: 3}, 1<<20)
	suspect.Add(0, "C2", []byte(`{"id":"C2"}`))
	testenv.Must(nodetest.JetStream(t, web).PublishMsg(t.Context(), suspect.Msg()))(t)
	if _, err := answers.NextMsg(nodetest.Stuck); err != nil {
		t.Errorf("the suspect was not answered: %v", err)
	}
	for _, v := range g.violated() {
		t.Error(v)
	}
}
