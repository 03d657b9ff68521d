package fetch_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/start"
)

// asked is a request for a run of one step that asks an endpoint over core NATS.
func asked() start.LoadRequest {
	req := nodetest.Small("statement")
	req.Steps[0].Kind = workqueue.KindDirect
	return req
}

// Services answer as they do for the stream, and nothing of it passes through the stream.
func TestRequestsGoOverCoreNATS(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var wrong atomic.Int64
	b.Serve(t, "statement", func(ctx context.Context, chunk *nodetest.Chunk) error {
		if chunk.Param("year") != "2026" {
			wrong.Add(1)
		}
		for n, item := range chunk.Items() {
			switch {
			case item.In.ID == "C7":
				item.Fail("no_balance", "the account has no balance")
			case item.In.ID == "C300" && chunk.Meta().Attempt == 1: // left out: it is asked for again
			default:
				item.Reply(nodetest.Statement{Of: item.In.ID + strings.Repeat(".", 3000*(n%2))})
			}
		}
		return ctx.Err()
	})
	var streamed atomic.Int64
	for _, subject := range []string{wire.WorkSubject("statement"), wire.ReplySubject("statement")} {
		testenv.Must(b.NC.Subscribe(subject, func(*nats.Msg) { streamed.Add(1) }))(t)
	}
	testenv.NoError(t, b.NC.FlushTimeout(nodetest.Stuck))
	req := asked()
	req.Params = map[string]string{"year": "2026"}
	run := b.Start(t, req, 2_000)
	if done, failed := b.Outcome(t, run, 1); done != 1_999 || failed != 1 {
		t.Fatalf("done %d, failed %d; want 1999 and 1", done, failed)
	}
	if got := b.ErrorOf(t, run, "C7"); got != "no_balance: the account has no balance" {
		t.Errorf("C7 failed with %q", got)
	}
	if n := wrong.Load(); n > 0 {
		t.Errorf("%d chunks came without the parameters", n)
	}
	testenv.NoError(t, b.NC.FlushTimeout(nodetest.Stuck))
	if n := streamed.Load(); n != 0 { // the node tries the streams when they have been silent for long, but not by these
		t.Errorf("%d messages were for the streams", n)
	}
	b.Check(t)
}

// No one listens for a while. The breaker understands, no item loses an attempt, and the run goes on when a service is
// there.
func TestRequestsWaitForAService(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Start(t, asked(), 2_000)
	b.Await(t, "the breaker is open", `SELECT EXISTS (SELECT FROM endpoint_pace WHERE endpoint = 'statement'
		AND breaker = 'open' AND breaker_reason LIKE '%no service listens%')`)
	l := nodetest.NewLedger(0)
	b.Serve(t, "statement", l.Handle)
	b.WantSound(t, l, run, 2_000)
	l.WantOnce(t, run, 2_000)
}

// Chunks and items that fit no message.
func TestRequestsAreCutToFit(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.SetupWith(t, embedded.NATSConfig{MaxPayload: 64 << 10})}
	b.Serve(t, "statement", nodetest.Echo)
	req := asked()
	n := 0
	loaded := testenv.Must(b.Node.Runs().Start(t.Context(), req, func(item *start.LoadItem) error {
		if n == 300 {
			return io.EOF
		}
		item.Key, item.Line = fmt.Sprintf("C%d", n), n+1
		pad := 100
		switch {
		case n == 299:
			pad = 100 << 10
		case n%10 == 0:
			pad = 20 << 10
		}
		item.Payload = fmt.Appendf(nil, `{"id":%q,"pad":%q}`, item.Key, strings.Repeat("x", pad))
		n++
		return nil
	}))(t)
	if done, failed := b.Outcome(t, loaded.Run, 1); done != 299 || failed != 1 {
		t.Fatalf("done %d, failed %d; want 299 and 1", done, failed)
	}
	if got := b.ErrorOf(t, loaded.Run, "C299"); !strings.HasPrefix(got, "item_too_large: ") {
		t.Errorf("the large item failed with %q", got)
	}
	b.Check(t)
}

// listens reports whether a service listens for requests over core NATS. The server says at once when none does, and a
// service drops what does not say who asks.
func (b *bundle) listens(t *testing.T, endpoint string) bool {
	t.Helper()
	answers, err := b.NC.SubscribeSync(b.NC.NewInbox())
	testenv.NoError(t, err)
	defer func() { _ = answers.Unsubscribe() }()
	err = b.NC.PublishRequest(wire.DirectSubject(endpoint), answers.Subject, nil)
	if err == nil {
		err = b.NC.FlushTimeout(nodetest.Stuck)
	}
	n, _, closed := answers.Pending()
	return err == nil && closed == nil && n == 0
}

// What was on its way when NATS went down, and is lost, is asked again long before its time is over.
func TestRequestsSurviveARestartOfNATS(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.OwnServer(t, embedded.NATSConfig{})}
	nc, toNATS := testenv.DialThrough(t, b.NS)
	b.Node = b.Join(t, b.Store, nc, nodetest.Config(t)).Node
	var swallowed atomic.Int64
	silent, err := b.NC.QueueSubscribe(wire.DirectSubject("statement"), "tranche", func(*nats.Msg) { swallowed.Add(1) })
	if err == nil {
		err = b.NC.FlushTimeout(nodetest.Stuck)
	}
	testenv.NoError(t, err)
	req := asked()
	req.Steps[0].Timeout = 10 * time.Minute
	run := b.Start(t, req, 1000)
	nodetest.Until(t, "all is on its way", func() bool { return swallowed.Load() == 10 })
	testenv.NoError(t, silent.Unsubscribe())
	l := nodetest.NewLedger(0)
	b.Serve(t, "statement", l.Handle)
	nodetest.Until(t, "a service listens", func() bool { return b.listens(t, "statement") })
	toNATS.Cut() // it asks again soon after it is back: not before the service is
	testenv.NoError(t, b.Own.Restart(t.Context()))
	nodetest.Until(t, "the service listens again", func() bool { return b.listens(t, "statement") })
	toNATS.Heal()
	b.WantSound(t, l, run, 1000)
	if s := b.Node.Stats(); s.Republished != 10 || s.FetchesFailed > 0 {
		t.Errorf("%d requests were sent again, want 10; %d chunks failed", s.Republished, s.FetchesFailed)
	}
}
