package pginbox_test

import (
	"context"
	"testing"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/endpointstest"
	"github.com/tranchehq/tranche/endpoints/pginbox"
	"github.com/tranchehq/tranche/endpoints/wire"
)

type transfer = endpoints.Stage[string, string, endpoints.None, endpoints.None]

var rates = endpoints.To[string, string]("rates")

// reserve writes an effect for each item that it has not written one for, and asks for a rate.
func reserve(ctx context.Context, s *transfer) error {
	for _, item := range s.Items() {
		if !pginbox.Done(ctx, item.Ordinal) {
			if _, err := pginbox.Tx(ctx).Exec(ctx, writeEffects, []string{"reserve " + item.Key}); err != nil {
				return err
			}
		}
		if item.Key == "K0" {
			item.Reply("nothing to transfer")
			continue
		}
		rates.Ask(item, item.In)
	}
	return nil
}

// settle writes another effect and answers.
func settle(ctx context.Context, s *transfer) error {
	for _, item := range s.Items() {
		if _, err := pginbox.Tx(ctx).Exec(ctx, writeEffects, []string{"settle " + item.Key}); err != nil {
			return err
		}
		item.Reply("at " + rates.Answer(item))
	}
	return nil
}

func (b *bundle) serveTransfer() *endpointstest.Instance {
	b.t.Helper()
	return b.kit.Serve(func(svc *endpoints.Service) error {
		return endpoints.HandleFlow(svc, "transfer", []func(context.Context, *transfer) error{reserve, settle},
			endpoints.Wrap(b.inbox.Once()))
	})
}

// checkTransfer fails the test unless each stage has written once for each item.
func (b *bundle) checkTransfer(reply *endpointstest.Reply) {
	b.t.Helper()
	if reply.Failure != nil || len(reply.Slots) != 3 {
		b.t.Fatalf("%d slots, failure %v", len(reply.Slots), reply.Failure)
	}
	if got := endpointstest.Result[string](b.t, reply, "K2"); got != "at rate of in 2" {
		b.t.Errorf("K2 is %q", got)
	}
	once := b.count(`SELECT count(*) FROM (SELECT account FROM effects GROUP BY account HAVING count(*) = 1) e`)
	if once != 5 || b.written() != 5 {
		b.t.Errorf("%d effects, %d of them once; want 5", b.written(), once)
	}
}

func rate(asked []endpointstest.Asked) ([]wire.Slot, error) {
	var slots []wire.Slot
	for _, item := range asked {
		var in string
		if err := item.Into(&in); err != nil {
			return nil, err
		}
		slots = append(slots, item.Answer("rate of "+in))
	}
	return slots, nil
}

func TestFlowStagesWriteOnce(t *testing.T) {
	t.Parallel()
	for name, point := range map[string]func(*endpointstest.Kit) *endpointstest.Kill{
		"none":             nil,
		"after stage 0":    func(k *endpointstest.Kit) *endpointstest.Kill { return k.KillBetween("transfer", 0) },
		"after stage 1":    func(k *endpointstest.Kit) *endpointstest.Kill { return k.KillBetween("transfer", 1) },
		"before the reply": func(k *endpointstest.Kit) *endpointstest.Kill { return k.KillBeforeReply("transfer") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.kit.Stub("rates", rate)
			var kill *endpointstest.Kill
			if point != nil {
				kill = point(b.kit)
			}
			b.serveTransfer()
			pending := b.kit.Post("transfer", items(3)...)
			if kill != nil {
				kill.Wait().Restart()
			}
			reply := pending.Wait()
			b.checkTransfer(reply)
			b.checkTransfer(b.kit.Reissue(reply.Request))
		})
	}
}
