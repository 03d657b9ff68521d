package runs_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/workqueue"
	controlstore "github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/health"
)

// moody answers most items and does to the others whatever a service can do.
func moody(ctx context.Context, chunk *apitest.Numbers) error {
	mood := rand.IntN(12)
	for _, item := range chunk.Items() {
		switch {
		case item.In.N%701 == 700:
			item.Fail("bad", "number %d is bad", item.In.N)
		case mood == 0:
			return errors.New("a bad day")
		case mood == 1 && rand.IntN(8) == 0:
			item.Retry("busy", "come again")
		case mood == 2 && rand.IntN(8) == 0: // left out
		default:
			item.Reply(item.In)
		}
	}
	if mood == 3 { // too slow for the run
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Second):
		}
	}
	return nil
}

// Whatever happens to a run, at each moment its explanation adds up and leaves no question open.
func TestExplanationsAddUpUnderChaos(t *testing.T) {
	t.Parallel()
	e, ns := apitest.SetupOwnEngine(t)
	handle := func(svc *endpoints.Service) error {
		return endpoints.HandleList(svc, "count", moody, endpoints.Concurrency(4))
	}
	e.Serve(handle)
	run := e.Load("count", 9000, func(s *workqueue.StepSpec) {
		s.Chunk, s.InFlight, s.MaxAttempts, s.Timeout = 40, 12, 8, time.Second
		s.RetryBackoff = 100 * time.Millisecond
	})
	e.Load("count", 500, nil) // another one that wants the same services
	chaos, endChaos := context.WithTimeout(t.Context(), 8*time.Second)
	defer endChaos()
	for _, mischief := range []func(context.Context){
		func(ctx context.Context) { e.AnotherNode(ctx) },
		func(ctx context.Context) {
			nc, stop := e.Serve(handle)
			apitest.Wait(ctx, time.Duration(200+rand.IntN(800))*time.Millisecond)
			nc.Close() // dies with what it has
			stop()
		},
		func(ctx context.Context) {
			control := controlstore.Control{Run: run, Actor: "test"}
			if _, err := controlstore.New(e.Store).Pause(ctx, control); err == nil {
				apitest.Wait(ctx, 300*time.Millisecond)
				_, _ = controlstore.New(e.Store).Resume(context.WithoutCancel(ctx), control, nil)
			}
			apitest.Wait(ctx, 700*time.Millisecond)
		},
		func(ctx context.Context) {
			apitest.Wait(ctx, 2500*time.Millisecond)
			_ = ns.Restart(context.WithoutCancel(ctx))
		},
	} {
		e.Keep(func(ctx context.Context) error {
			for ctx.Err() == nil && chaos.Err() == nil {
				mischief(chaos)
			}
			return nil
		})
	}
	reasons := map[health.Kind]int{}
	asked := 0
	for deadline := time.Now().Add(3 * time.Minute); ; asked++ {
		found, err := health.New(e.Store).Explain(t.Context(), run)
		if err != nil {
			t.Fatal(err)
		}
		e.AnswersAll(found.Groups, found.Missing)
		for i := range found.Groups {
			reasons[found.Groups[i].Reason]++
		}
		if asked%20 == 0 {
			e.ThroughTheAPI(run)
		}
		if found.State == "completed" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the run does not end: %+v", found)
		}
	}
	t.Logf("%d explanations, %v", asked, reasons)
	if asked < 20 || len(reasons) < 5 {
		t.Errorf("%d explanations saw only %v", asked, reasons)
	}
}
