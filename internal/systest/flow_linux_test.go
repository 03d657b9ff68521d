package systest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

type (
	price struct {
		For string `json:"for"`
	}
	memory struct {
		Of string `json:"of"`
	}
	stage = endpoints.Stage[account, statement, memory, endpoints.None]
)

// pace is how long each chunk takes, so that a run outlives a few processes.
const pace = 20 * time.Millisecond

// runCallee is the process of a service that flows ask.
func runCallee(endpoint string) func(context.Context) error {
	return func(ctx context.Context) error {
		nc, err := nats.Connect(os.Getenv(natsVariable), nats.MaxReconnects(-1), nats.Timeout(time.Minute))
		if err != nil {
			return err
		}
		defer nc.Close()
		svc, err := endpoints.New(nc, endpoints.Config{Name: endpoint, Version: "1.0.0"})
		if err != nil {
			return err
		}
		if endpoint == "prices" { // in several messages, while that of the accounts is whole
			err = endpoints.HandleList(svc, endpoint, func(ctx context.Context, c *endpoints.Chunk[account, price]) error {
				for n, item := range c.Items() {
					if item.Reply(price{item.In.ID}); n%40 == 39 {
						c.Flush()
					}
				}
				return rest(ctx)
			})
		} else {
			err = endpoints.HandleList(svc, endpoint, func(ctx context.Context, c *endpoints.Chunk[account, account]) error {
				for _, item := range c.Items() {
					item.Reply(item.In)
				}
				return rest(ctx)
			})
		}
		if err != nil {
			return err
		}
		fmt.Fprintln(os.Stderr, ready)
		return svc.Run(ctx)
	}
}

// rest lets a while pass.
func rest(ctx context.Context) error {
	timer := time.NewTimer(pace)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// runFlow is the process of a service whose endpoint asks two others, joins what they say, and asks once more. It
// writes into the ledger which items it answers.
func runFlow(ctx context.Context) error {
	svc, ledger, closeAll, err := openService("flow")
	if err != nil {
		return err
	}
	defer closeAll()
	revision := endpoints.Revision(os.Getenv(revisionVariable))
	if err := endpoints.HandleFlow(svc, "statement", stages(ctx, ledger), revision); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, ready)
	return errors.Join(svc.Run(ctx), ledger.Close())
}

func stages(told context.Context, ledger *os.File) []func(context.Context, *stage) error {
	var mu sync.Mutex
	accounts, prices := endpoints.To[account, account]("accounts"), endpoints.To[account, price]("prices")
	answer := func(s *stage, item *endpoints.StageItem[account, statement, memory, endpoints.None], of string) error {
		if err := heed(told, ledger); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		_, err := fmt.Fprintf(ledger, "%s %d %d\n", s.Meta().Slice, item.Ordinal, s.Meta().Generation)
		item.Reply(statement{Of: of})
		return err
	}
	return []func(context.Context, *stage) error{
		func(ctx context.Context, s *stage) error {
			for _, item := range s.Items() {
				if item.Ordinal%10 == 0 {
					if err := answer(s, item, item.In.ID); err != nil {
						return err
					}
					continue
				}
				accounts.Ask(item, item.In)
				prices.Ask(item, item.In)
			}
			return rest(ctx)
		},
		func(ctx context.Context, s *stage) error {
			for _, item := range s.Items() {
				if item.State.Of = prices.Answer(item).For; item.State.Of != accounts.Answer(item).ID {
					item.Fail("torn", "%s and %s", item.State.Of, accounts.Answer(item).ID)
					continue
				}
				accounts.Ask(item, account{ID: item.State.Of})
			}
			return rest(ctx)
		},
		func(ctx context.Context, s *stage) error {
			for _, item := range s.Items() {
				if err := answer(s, item, accounts.Answer(item).ID); err != nil {
					return err
				}
			}
			return errors.Join(ledger.Sync(), rest(ctx))
		},
	}
}

// startFlow runs two processes of each service.
func (w *world) startFlow() (running map[string][2]*process) {
	w.Helper()
	running = map[string][2]*process{}
	for _, role := range []string{"flow", "accounts", "prices"} {
		running[role] = [2]*process{w.start(role), w.start(role)}
	}
	return running
}

// Services of a flow are killed one after the other, wherever they are: each chunk comes home, with the right answers,
// and nothing waits for its deadline.
func TestFlowWhoseServicesAreKilled(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.items = 20_000
	run := w.load()
	w.allow(0)
	running := w.startFlow()
	w.start("node", sessionVariable+"=1m")
	random := rand.New(rand.NewPCG(1, 2))
	roles := []string{"flow", "accounts", "flow", "prices"}
	for n := range 8 {
		done := w.done(run)
		w.allow(w.items / 40)
		w.until("more is done", func() bool { return w.done(run) >= min(done+w.items/40, w.items) })
		role, i := roles[n%len(roles)], random.IntN(2)
		if w.done(run) == w.items {
			t.Fatalf("the run was complete before kill %d", n)
		}
		both := running[role]
		w.signal(both[i], syscall.SIGKILL)
		w.wantKilled(both[i])
		both[i] = w.start(role)
		running[role] = both
	}
	w.allowAll()
	extra := w.wantSound(run)
	t.Logf("%d extra executions", extra)
	if n := w.number(`SELECT count(*) FROM work_slice WHERE cause <> 'ready'`); n != 0 {
		t.Errorf("%d slices were made anew; want the same messages delivered again", n)
	}
}

// What a flow has in streams is lost in the middle of a run. Its slices come again in seconds, long before their
// deadlines.
func TestFlowWhoseStreamsAreLost(t *testing.T) {
	t.Parallel()
	for name, streams := range map[string][]string{
		"replies to the flow": {wire.StreamStage},
		"suspended chunks":    {wire.StreamFlow},
		"all": {wire.StreamWork, wire.StreamReply, wire.StreamStage, wire.StreamFlow,
			wire.StreamEvent, wire.StreamDead},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.items = 10_000
			js, err := jetstream.New(testenv.Conn(t, w.ns))
			if err != nil {
				t.Fatal(err)
			}
			run := w.load()
			w.allow(w.items / 10)
			w.startFlow()
			w.start("node")
			w.until("some is done", func() bool { return w.done(run) >= w.items/10 })
			for _, stream := range streams {
				if err := js.DeleteStream(t.Context(), stream); err != nil {
					t.Fatal(err)
				}
			}
			if w.done(run) == w.items {
				t.Fatal("the run was complete before the loss")
			}
			w.allowAll()
			lost := time.Now()
			extra := w.wantSound(run)
			t.Logf("complete after %s, %d extra executions", time.Since(lost), extra)
		})
	}
}

// SIGTERM, to one service of a flow after the other: they end in time and well, nothing is executed twice, and nothing
// waits for a time to be over.
func TestFlowWhoseServicesAreToldToEnd(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.items = 20_000
	run := w.load()
	w.allow(0)
	running := w.startFlow()
	w.start("node", sessionVariable+"=1m")
	for n, role := range []string{"flow", "accounts", "prices"} {
		done := w.done(run)
		w.allow(w.items / 10)
		w.until("more is done", func() bool { return w.done(run) >= min(done+w.items/10, w.items) })
		if w.done(run) == w.items {
			t.Fatalf("the run was complete before end %d", n)
		}
		ending := running[role][0]
		w.signal(ending, syscall.SIGTERM)
		w.await(ending)
		if ending.err != nil {
			t.Errorf("%s ended with %v", role, ending.err)
		}
		w.start(role)
	}
	w.allowAll()
	if extra := w.wantSound(run); extra != 0 {
		t.Errorf("%d items were executed twice", extra)
	}
	if n := w.number(`SELECT count(*) FROM work_slice WHERE cause <> 'ready'`); n != 0 {
		t.Errorf("%d slices were made anew", n)
	}
}

// A version of a flow is replaced by one that cannot go on with its chunks, while both run: each chunk waits for one of
// its own version, and what the old one leaves behind is begun anew.
func TestFlowIsDeployedAnew(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.items = 10_000
	run := w.load()
	w.allow(w.items / 10)
	w.start("accounts")
	w.start("prices")
	old := w.start("flow", revisionVariable+"=old")
	w.start("node")
	w.until("the old version has done some", func() bool { return w.done(run) >= w.items/10 })
	w.start("flow", revisionVariable+"=new")
	w.allow(w.items / 3)
	w.until("both have done some", func() bool { return w.done(run) >= w.items/3 })
	w.signal(old, syscall.SIGTERM)
	w.await(old)
	if old.err != nil {
		t.Errorf("the old version ended with %v", old.err)
	}
	if w.done(run) == w.items {
		t.Fatal("the run was complete before the old version ended")
	}
	w.allowAll()
	extra := w.wantSound(run)
	t.Logf("%d extra executions", extra)
}
