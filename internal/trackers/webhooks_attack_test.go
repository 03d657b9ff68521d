package trackers_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/internal/trackers"
)

// rawHost is a host that reads a request and does what it wants to the connection.
func rawHost(t *testing.T, answer func(c *net.TCPConn)) string {
	t.Helper()
	return rawListener(t, func(c *net.TCPConn) {
		if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.Copy(io.Discard, r.Body)
			answer(c)
		}
	})
}

// rawListener takes connections one at a time.
func rawListener(t *testing.T, serve func(c *net.TCPConn)) string {
	t.Helper()
	listener := testenv.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			serve(c.(*net.TCPConn))
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); <-ended })
	return "http://" + listener.Addr().String()
}

func says(text string) func(*net.TCPConn) {
	return func(c *net.TCPConn) { _, _ = io.WriteString(c, text) }
}

// hangs writes a text and waits until the other end has had enough.
func hangs(text string) func(*net.TCPConn) {
	return func(c *net.TCPConn) {
		says(text)(c)
		_, _ = io.Copy(io.Discard, c)
	}
}

// endless writes a text repeatedly behind another, until no one takes it any more.
func endless(first, text string) func(*net.TCPConn) {
	return func(c *net.TCPConn) {
		for _, err := io.WriteString(c, first); err == nil; {
			_, err = io.WriteString(c, text)
		}
	}
}

const okBegin = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"

// oddReceivers go wrong, each in a way of its own. Without want what they answer is a delivery.
func oddReceivers(t *testing.T) map[string]struct{ url, want string } {
	t.Helper()
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = zap.NewStdLog(zap.NewNop())
	secure.StartTLS()
	t.Cleanup(secure.Close)
	line := "X-A: " + strings.Repeat("x", 1<<12) + "\r\n"
	return map[string]struct{ url, want string }{
		"ends early":    {rawHost(t, says(okBegin+"three")), ""},
		"slow body":     {rawHost(t, hangs(okBegin)), ""},
		"endless body":  {rawHost(t, endless("HTTP/1.1 200 OK\r\n\r\n", line)), ""},
		"broken chunks": {rawHost(t, says("HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")), ""},

		"no HTTP":      {rawHost(t, says("220 smtp.bank.example ready\r\n")), "what came was no HTTP"},
		"closes":       {rawHost(t, says("")), "the connection broke"},
		"resets":       {rawHost(t, func(c *net.TCPConn) { _ = c.SetLinger(0) }), "the connection broke"},
		"endless head": {rawHost(t, endless("HTTP/1.1 200 OK\r\n", line)), "the connection broke"},
		"only interim": {rawHost(t, endless("", "HTTP/1.1 103 Early Hints\r\n"+line+"\r\n")), "the connection broke"},
		"who is it":    {secure.URL, "signed by an authority that this node does not know"},
		"no TLS":       {strings.Replace(rawListener(t, hangs(okBegin)), "http:", "https:", 1), "does not speak TLS"},
		"to nowhere": {rawHost(t, says("HTTP/1.1 302 Found\r\nLocation: http://%zz/\r\nContent-Length: 0\r\n\r\n")),
			"answers 302 Found; redirects are not followed"},
		"to loopback": {rawHost(t, says("HTTP/1.1 308 X\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")),
			"answers 308 Permanent Redirect; redirects are not followed"},
	}
}

// Receivers that go wrong cost an attempt at most, and the reason is told. A status says what counts, whatever
// stands behind it. An attempt after which nothing more comes has its end in time.
func TestReceiversThatGoWrong(t *testing.T) {
	t.Parallel()
	receivers := oddReceivers(t)
	slow := rawHost(t, hangs("HTTP/1.1 200 OK\r\nX-A: "))
	hosts := []string{slow}
	for _, r := range receivers {
		hosts = append(hosts, r.url)
	}
	conns := operator(t, true, hosts...)
	b := setup(t, conns)
	lease := b.lease()
	run := func(c *trackers.WebhooksConfig) { c.FirstRetry, c.Timeout = time.Hour, time.Hour }
	ids := map[string]uuid.UUID{}
	for name, r := range receivers {
		ids[name] = b.due(r.url, 1)[0]
	}
	testenv.Must(b.webhooks(conns, run).Run(t.Context(), lease))(t)
	for name, r := range receivers {
		got := b.webhook(ids[name], trackers.All)
		if got.Attempts != 1 || (got.State == "delivered") != (r.want == "") || !strings.Contains(got.Error, r.want) {
			t.Errorf("%s: %+v; want %q", name, got, r.want)
		}
	}
	id := b.due(slow, 1)[0]
	impatient := func(c *trackers.WebhooksConfig) { c.Timeout = 100 * time.Millisecond }
	testenv.Must(b.webhooks(conns, run, impatient).Run(t.Context(), lease))(t)
	if got := b.webhook(id, trackers.All); got.Attempts != 1 || !strings.Contains(got.Error, "before its timeout") {
		t.Errorf("a head that does not end: %+v", got)
	}
}

// What a receiver says is quoted to operators, without secrets, and to viewers not at all: it may repeat what it was
// asked for. These see of the URL whose it is.
func TestWhatIsToldOfReceivers(t *testing.T) {
	t.Parallel()
	const path = "/hooks/T0PSECRET?key=K3Y"
	said := strings.Repeat("x", 150) + hookSecret + "\n no " + path + strings.Repeat("y", 1000)
	host := rawHost(t, says("HTTP/1.1 404 Not Found\r\n\r\n"+said))
	conns := operator(t, true, host)
	b := setup(t, conns)
	id := b.due(host+path, 1)[0]
	hooks := b.webhooks(conns, func(c *trackers.WebhooksConfig) { c.FirstRetry = time.Hour })
	testenv.Must(hooks.Run(t.Context(), b.lease()))(t)
	const status = "answers 404 Not Found"
	all, some := b.webhook(id, trackers.All), b.webhook(id, trackers.Origins)
	if all.URL != host+path || !strings.Contains(all.Error, status+": xxx") || !strings.Contains(all.Error, "no /hooks") ||
		strings.Contains(all.Error, hookSecret[:12]) || len(all.Error) > 300 {
		t.Errorf("operators are told %+v", all)
	}
	if some.URL != host || !strings.HasSuffix(some.Error, status) {
		t.Errorf("viewers are told %+v", some)
	}
}

func (b *bench) webhook(id uuid.UUID, sight trackers.Visibility) *trackerclient.WebhookView {
	b.Helper()
	return b.get(id, 0, sight).Webhook
}

// hanging is a host that takes requests and answers none before it is let go.
type hanging struct {
	*httptest.Server
	asked chan string // the webhook-id of each request
	goOn  chan struct{}
}

func newHanging(t *testing.T) *hanging {
	t.Helper()
	h := &hanging{asked: make(chan string, 1000), goOn: make(chan struct{})}
	h.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		h.asked <- q.Header.Get("webhook-id")
		select {
		case <-h.goOn:
		case <-q.Context().Done():
		}
	}))
	t.Cleanup(h.Close)
	return h
}

// due opens batches whose webhooks are due concurrently.
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
	hooks := b.webhooks(conns, func(c *trackers.WebhooksConfig) { c.Timeout = time.Hour }) // what hangs continues to
	const most = trackers.WebhooksPerHost
	b.due(hung.URL, most+4)
	b.due(live.URL, 3)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := hooks.Run(ctx, lease); done <- err }()
	different := map[string]bool{}
	for range most { // all that may be in progress at the host that hangs are
		different[<-hung.asked] = true
	}
	b.until("those of the other host are delivered", func() bool { return b.delivered() == 3 })
	b.due(live.URL, 2)
	b.until("those that came later are delivered", func() bool { return b.delivered() == 5 })
	if more := len(hung.asked); more != 0 || len(different) != most {
		t.Errorf("the host that hangs has %d requests of %d webhooks, want %d of as many", most+more, len(different), most)
	}
	select {
	case err := <-done:
		t.Errorf("the task ended, though attempts are in progress: %v", err)
	default:
	}
	stop()
	testenv.Is(t, <-done, context.Canceled, "the task ended with")
	left := b.count(`SELECT count(*) FROM tracker_service WHERE webhook_state = 'due' AND webhook_attempts = 0`)
	testenv.Same(t, left, most+4, "hung and are as they were")
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
	_, err := bad.Run(t.Context(), lease)
	testenv.Says(t, err, "panic: a mistake", "the task ended with")
	if got := b.webhook(id, trackers.All); got.State != "due" || got.Attempts != 0 {
		t.Errorf("after the panic: %+v", got)
	}
	testenv.Same(t, b.runHooks(b.webhooks(conns), lease, id, delivered).Attempts, 1, "later")
}
