package orchestrator_test

import (
	"context"
	"testing"

	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

type stage = endpoints.Stage[nodetest.Account, nodetest.Statement, nodetest.Statement, endpoints.None]

// asksTwice answers a tenth of the items, asks two services about the others, joins what they say and asks again.
func asksTwice(l *nodetest.Ledger) []func(context.Context, *stage) error {
	accounts := endpoints.To[nodetest.Account, nodetest.Statement]("accounts")
	prices := endpoints.To[nodetest.Account, nodetest.Statement]("prices")
	answer := func(ctx context.Context, s *stage, of func(*endpoints.StageItem[nodetest.Account, nodetest.Statement,
		nodetest.Statement, endpoints.None]) (string, bool),
	) error {
		var ordinals []int
		for _, item := range s.Items() {
			if id, now := of(item); now {
				ordinals = append(ordinals, item.Ordinal)
				item.Reply(nodetest.Statement{Of: id})
			}
		}
		return l.Take(ctx, s.Meta(), ordinals...)
	}
	type item = endpoints.StageItem[nodetest.Account, nodetest.Statement, nodetest.Statement, endpoints.None]
	return []func(context.Context, *stage) error{
		func(ctx context.Context, s *stage) error {
			return answer(ctx, s, func(item *item) (string, bool) {
				if item.Ordinal%10 == 0 {
					return item.In.ID, true
				}
				accounts.Ask(item, item.In)
				prices.Ask(item, item.In)
				return "", false
			})
		},
		func(_ context.Context, s *stage) error {
			for _, item := range s.Items() {
				if item.State = prices.Answer(item); item.State != accounts.Answer(item) {
					item.Fail("torn", "%v and %v", item.State, accounts.Answer(item))
					continue
				}
				accounts.Ask(item, nodetest.Account{ID: item.State.Of})
			}
			return nil
		},
		func(ctx context.Context, s *stage) error {
			return answer(ctx, s, func(item *item) (string, bool) { return accounts.Answer(item).Of, true })
		},
	}
}

// mortal runs a service of a flow, or one that it asks, until the returned function has it crash.
func (b *bundle) mortal(t *testing.T, name string, l *nodetest.Ledger) (crash func()) {
	t.Helper()
	nc, toNATS := testenv.DialThrough(t, b.NS)
	svc, err := endpoints.New(nc, endpoints.Config{Name: "test", Version: "1.0.0", Log: zaptest.NewLogger(t)})
	if err == nil && name == "statement" {
		err = endpoints.HandleFlow(svc, name, asksTwice(l))
	} else if err == nil {
		err = endpoints.HandleList(svc, name, nodetest.Echo)
	}
	testenv.Check(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = svc.Run(ctx) // it ends as its connection does
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return func() { toNATS.Cut(); cancel() }
}

// The services of a flow crash in the middle of a run, wherever they are, or what the flow has in streams is lost: each
// chunk comes home, with the right answers, and nothing waits for its deadline.
func TestAFlowOfWhichAPartIsLost(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string][]string{
		"services crash":                nil,
		"replies to the flow are lost":  {wire.StreamStage},
		"suspended chunks are lost":     {wire.StreamFlow},
		"requests and replies are lost": {wire.StreamWork, wire.StreamReply},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const items = 1_000
			b, l := setup(t), nodetest.NewLedger(items/4)
			services := map[string]func(){}
			for _, name := range []string{"statement", "accounts", "prices"} {
				services[name] = b.mortal(t, name, l)
				b.mortal(t, name, l)
			}
			steps := []workqueue.StepSpec{step("statement", workqueue.KindEndpoint)}
			run := b.load(t, items, steps...)
			l.Await(t)
			for _, stream := range lose {
				testenv.Check(t, b.JS(t).DeleteStream(t.Context(), stream))
			}
			for name, crash := range services {
				if lose == nil {
					crash()
					b.mortal(t, name, l)
				}
			}
			if b.outcomes(t, run) == items {
				t.Fatal("the run was complete before the loss")
			}
			close(l.Gate)
			b.WantSound(t, l, run, items)
			late := `cause IN ('deadline', 'silence')`
			if lose == nil { // the same messages are delivered again
				late = `cause <> 'ready'`
			}
			if n := b.Number(t, `SELECT count(*) FROM work_slice WHERE `+late); n != 0 {
				t.Errorf("%d slices were made for another cause", n)
			}
		})
	}
}
