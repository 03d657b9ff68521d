package trackers_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/internal/trackers"
)

// hanging is a host that takes requests and answers none before it is let go.
type hanging struct {
	*httptest.Server

	mu    sync.Mutex
	asked map[string]int // how often, by webhook-id
	goOn  chan struct{}
}

func newHanging(t *testing.T) *hanging {
	t.Helper()
	h := &hanging{asked: map[string]int{}, goOn: make(chan struct{})}
	h.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		h.mu.Lock()
		h.asked[q.Header.Get("webhook-id")]++
		h.mu.Unlock()
		select {
		case <-h.goOn:
		case <-q.Context().Done():
		}
	}))
	t.Cleanup(h.Close)
	return h
}

// requests is how many it had, and of how many webhooks.
func (h *hanging) requests() (all, different int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range h.asked {
		all += n
	}
	return all, len(h.asked)
}

// due opens batches whose webhooks are due at once.
func (b *bench) due(url string, n int) (ids []uuid.UUID) {
	b.Helper()
	for range n {
		id := b.open(trackerclient.BatchSettings{Webhook: &trackerclient.WebhookSettings{URL: url, Secret: "hooks"}}, 0)
		b.seal(id)
		ids = append(ids, id)
	}
	return ids
}

func (b *bench) until(what string, holds func() bool) {
	b.Helper()
	testenv.Until(b, soon, what, holds)
}

func (b *bench) delivered() int {
	return b.count(`SELECT count(*) FROM tracker_service WHERE webhook_state = 'delivered'`)
}

// A host that hangs has its own webhooks wait, those of others go out, also those that become due meanwhile. None is
// handed out twice. When the leader task ends what hangs is cut off, and stays due.
func TestAHostThatHangsDelaysNoOther(t *testing.T) {
	t.Parallel()
	hung, live := newHanging(t), newReceiver(t)
	conns := operator(t, true, hung.URL, live.URL)
	b := setup(t, conns)
	lease := b.lease()
	hooks := b.webhooks(conns, func(c *trackers.WebhooksConfig) { c.Timeout = time.Hour }) // what hangs goes on to
	const most = trackers.WebhooksPerHost
	b.due(hung.URL, most+4)
	b.due(live.URL, 3)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := hooks.Run(ctx, lease); done <- err }()
	b.until("all that may be in progress at the host that hangs are", func() bool {
		all, _ := hung.requests()
		return all == most
	})
	b.until("those of the other host are delivered", func() bool { return b.delivered() == 3 })
	b.due(live.URL, 2)
	b.until("those that came later are delivered", func() bool { return b.delivered() == 5 })
	if all, different := hung.requests(); all != most || different != most {
		t.Errorf("the host that hangs has %d requests of %d webhooks, want %d of as many", all, different, most)
	}
	select {
	case err := <-done:
		t.Errorf("the task ended, though attempts are in progress: %v", err)
	default:
	}
	stop()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the task ended with %v", err)
	}
	left := b.count(`SELECT count(*) FROM tracker_service WHERE webhook_state = 'due' AND webhook_attempts = 0`)
	if left != most+4 {
		t.Errorf("%d of the %d that hung are as they were", left, most+4)
	}
	close(hung.goOn)
	hooks = b.webhooks(conns)
	b.until("all are delivered by whoever leads then", func() bool {
		testenv.Must(hooks.Run(t.Context(), lease))(t)
		return b.delivered() == most+4+5
	})
	live.wantTaken(t, 5)
}

// broken is a transport with a mistake in it.
type broken struct{ http.RoundTripper }

func (broken) RoundTrip(*http.Request) (*http.Response, error) { panic("a mistake") }

// A panic in an attempt is an error of the leader task, which the node shows, and no end of the process. The webhook
// stays due.
func TestAPanicOfAnAttemptIsAnErrorOfTheTask(t *testing.T) {
	t.Parallel()
	host := newReceiver(t)
	conns := operator(t, true, host.URL)
	b := setup(t, conns)
	lease := b.lease()
	id := b.due(host.URL, 1)[0]
	bad := b.webhooks(conns, func(c *trackers.WebhooksConfig) { c.Transport = broken{} })
	if _, err := bad.Run(t.Context(), lease); err == nil || !strings.Contains(err.Error(), "panic: a mistake") {
		t.Errorf("the task ended with %v", err)
	}
	if got := b.webhook(id, trackers.All); got.State != "due" || got.Attempts != 0 {
		t.Errorf("after the panic: %+v", got)
	}
	if got := b.runHooks(b.webhooks(conns), lease, id, delivered); got.Attempts != 1 {
		t.Errorf("later: %+v", got)
	}
}
