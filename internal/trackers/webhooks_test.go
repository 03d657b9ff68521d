package trackers_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/internal/trackers"
	"github.com/tranchehq/tranche/workqueue"
)

const hookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// receiver is a host that gets webhooks.
type receiver struct {
	*httptest.Server

	mu     sync.Mutex
	answer []int // what it answers, one at a time; then 204
	got    []http.Header
	bodies []string
	bad    []string
}

func newReceiver(t *testing.T, answer ...int) *receiver {
	t.Helper()
	r := &receiver{answer: answer}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.got, r.bodies = append(r.got, q.Header.Clone()), append(r.bodies, string(body))
		if why := verify(q.Header, body); why != "" {
			r.bad = append(r.bad, why)
		}
		status := http.StatusNoContent
		if n := len(r.got) - 1; n < len(r.answer) {
			status = r.answer[n]
		}
		w.Header().Set("Location", "http://127.0.0.1:1/elsewhere")
		w.WriteHeader(status)
	}))
	t.Cleanup(r.Close)
	return r
}

// taken is how many webhooks it got, and what was wrong with some.
func (r *receiver) taken() (all int, bad []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.got), slices.Clone(r.bad)
}

// wantTaken fails the test unless it got so many, all of them good.
func (r *receiver) wantTaken(t *testing.T, want int) {
	t.Helper()
	if all, bad := r.taken(); all != want || len(bad) > 0 {
		t.Errorf("it got %d webhooks, want %d; bad ones: %q", all, want, bad)
	}
}

// verify is how a receiver checks a signature, written apart from how it is made.
func verify(h http.Header, body []byte) string {
	seconds, err := strconv.ParseInt(h.Get("webhook-timestamp"), 10, 64)
	if err != nil || time.Since(time.Unix(seconds, 0)).Abs() > 5*time.Minute {
		return "the timestamp is " + h.Get("webhook-timestamp")
	}
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(hookSecret, "whsec_"))
	mac := hmac.New(sha256.New, key)
	_, _ = fmt.Fprintf(mac, "%s.%d.%s", h.Get("webhook-id"), seconds, body)
	if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); h.Get("webhook-signature") != want {
		return "the signature is " + h.Get("webhook-signature") + ", not " + want
	}
	return ""
}

// operator is the operator's file: the secret hooks is meant for these hosts.
func operator(t *testing.T, private bool, hosts ...string) *connections.Connections {
	t.Helper()
	dir := t.TempDir()
	testenv.NoError(t, os.WriteFile(filepath.Join(dir, "hooks.key"), []byte(hookSecret+"\n"), 0o600))
	quoted, _ := json.Marshal(hosts)
	text := fmt.Sprintf("secrets: {hooks: {file: hooks.key, hosts: %s}}\n", quoted)
	if private {
		text += "http: {allow_private: [127.0.0.1]}\n"
	}
	return testenv.Must(connections.Parse(filepath.Join(dir, "connections.yaml"), []byte(text)))(t)
}

func (b *bench) webhooks(
	conns *connections.Connections, change ...func(*trackers.WebhooksConfig),
) *trackers.Webhooks {
	b.Helper()
	web, err := httpfetch.New(conns, httpfetch.Config{ConnectTimeout: time.Minute}) // many tests run concurrently
	testenv.NoError(b, err)
	b.Cleanup(web.Close)
	config := trackers.WebhooksConfig{FirstRetry: time.Millisecond, SenderConfig: httpfetch.SenderConfig{
		Connections: conns, Transport: web.Transport(), Timeout: time.Minute}}
	for _, f := range change {
		f(&config)
	}
	return testenv.Must(trackers.NewWebhooks(b.db, config))(b)
}

// runHooks does the leader task until the webhook of the batch is in a state, and returns it.
func (b *bench) runHooks(
	hooks *trackers.Webhooks, lease workqueue.Lease, batch uuid.UUID, until func(*trackerclient.WebhookView) bool,
) *trackerclient.WebhookView {
	b.Helper()
	var view *trackerclient.WebhookView
	defer func() { b.Logf("the webhook: %+v", view) }()
	b.until("the webhook is in that state", func() bool {
		testenv.Must(hooks.Run(b.Context(), lease))(b)
		view = b.webhook(batch, trackers.All)
		return until(view)
	})
	return view
}

func delivered(w *trackerclient.WebhookView) bool { return w.State == "delivered" }

// A receiver that fails twice, with a redirect between, gets the same event until it takes it, signed each time, under
// one id; then no more.
func TestWebhookUntilItIsTaken(t *testing.T) {
	t.Parallel()
	host := newReceiver(t, 500, 307, 429)
	conns := operator(t, true, host.URL)
	b := setup(t, conns)
	hooks, lease := b.webhooks(conns), b.lease()
	id := b.open(trackerclient.BatchSettings{Owner: "billing", Key: "nov", Webhook: &trackerclient.WebhookSettings{
		URL: host.URL + "/done?for=us", Secret: "hooks",
	}}, 3)
	refused := trackerclient.Acknowledgement{Ranges: []string{"0:2"}, Code: "REFUSED"}
	testenv.Must(b.ack(id.String(), refused))(t)
	testenv.Must(hooks.Run(t.Context(), lease))(t)
	host.wantTaken(t, 0) // the batch is open
	b.seal(id)
	if acked, err := b.ack(id.String(), trackerclient.Acknowledgement{Ranges: []string{"all"}}); err != nil ||
		len(acked.CompletedBatches) != 1 || b.ended.Load() != 1 {
		t.Fatal(acked, err)
	}
	view := b.runHooks(hooks, lease, id, delivered)
	if view.Attempts != 4 || view.Error != "" {
		t.Errorf("%+v; want delivered at the fourth attempt", view)
	}
	testenv.Must(hooks.Run(t.Context(), lease))(t)
	host.mu.Lock()
	defer host.mu.Unlock()
	if len(host.bad) > 0 || len(host.got) != 4 {
		t.Fatalf("%d attempts, bad ones: %q", len(host.got), host.bad)
	}
	for i := range host.got {
		if host.bodies[i] != host.bodies[0] || host.got[i].Get("webhook-id") != host.got[0].Get("webhook-id") {
			t.Errorf("attempt %d differs: %v %s", i+1, host.got[i], host.bodies[i])
		}
	}
	checkEvent(t, b, host.bodies[0], host.got[0].Get("webhook-id"))
}

// checkEvent compares what a webhook says with the event that is published.
func checkEvent(t *testing.T, b *bench, body, id string) {
	t.Helper()
	var told struct {
		Type string
		Data struct {
			ID, Batch, Owner, Key string
			Items, Done, Failed   int
			Codes                 map[string]int
		}
	}
	testenv.NoError(t, json.Unmarshal([]byte(body), &told))
	d := told.Data
	if told.Type != "tracker.completed" || d.ID != id || d.Owner != "billing" || d.Key != "nov" || d.Items != 3 ||
		d.Done != 2 || d.Failed != 1 || d.Codes["REFUSED"] != 1 {
		t.Errorf("the webhook says %s", body)
	}
	testenv.Same(t, b.count(`SELECT count(*) FROM run_event WHERE id = $1 AND payload = $2::jsonb->'data'`, id, body), 1,
		"the event that is published is another one")
}

// Where the operator's file does not allow it nothing is sent: refused when the batch is opened, and when it is sent.
func TestWebhooksThatAreRefused(t *testing.T) {
	t.Parallel()
	host := newReceiver(t)
	open := operator(t, true, host.URL, "http://127.0.0.1:1")
	b := setup(t, open)
	for _, c := range []struct{ url, secret, place, want string }{
		{"http://evil.example/", "hooks", "webhook", "is not meant for http://evil.example"},
		{host.URL, "other", "webhook", `knows no secret "other"; there are hooks`},
		{host.URL, "", "webhook.secret", "name a secret"},
		{"ftp://127.0.0.1/", "hooks", "webhook.url", "want a URL"},
		{"nonsense", "hooks", "webhook.url", "want a URL"},
		{"http://me:pass@127.0.0.1/", "hooks", "webhook.url", "password has no place"},
	} {
		set := trackerclient.BatchSettings{Owner: "o", Webhook: &trackerclient.WebhookSettings{URL: c.url, Secret: c.secret}}
		_, err := b.service.Open(t.Context(), set, ann)
		bad := asRefused(err)
		if bad == nil || bad.Code != trackerclient.CodeWebhook || bad.Place != c.place ||
			!strings.Contains(bad.Message, c.want) {
			t.Errorf("%s by %q: %+v; want %q at %s", c.url, c.secret, bad, c.want, c.place)
		}
		if bad != nil && strings.Contains(bad.Message+bad.Value, "pass@") {
			t.Errorf("a password is repeated: %+v", bad)
		}
	}
	// The node that sends has another file: it may not reach the host, or the secret is not meant for it.
	lease := b.lease()
	for want, conns := range map[string]*connections.Connections{
		"private network": operator(t, false, host.URL),
		"is not meant":    operator(t, true, "http://127.0.0.1:1"),
		"knows no secret": {},
	} {
		id := b.due(host.URL, 1)[0]
		view := b.runHooks(b.webhooks(conns), lease, id, func(w *trackerclient.WebhookView) bool { return w.Attempts > 0 })
		if view.State != "due" || !strings.Contains(view.Error, want) || strings.Contains(view.Error, hookSecret) {
			t.Errorf("%+v; want %q", view, want)
		}
		ours := b.webhook(id, trackers.Origins).Error
		if want != "private network" && ours != "this node has no secret to sign it with" {
			t.Errorf("viewers are told what is the operator's: %q", ours)
		}
		testenv.Must(b.service.Delete(t.Context(), trackerclient.BatchRequest{Batch: id.String()}, ann))(t)
	}
	host.wantTaken(t, 0)
}

// age has a webhook be owed for longer, after attempts that failed.
func (b *bench) age(id uuid.UUID, by time.Duration, attempts int) {
	b.Helper()
	testenv.Must(b.pool.Exec(b.Context(), `UPDATE tracker_service
		SET webhook_due_at = webhook_due_at - $2::interval, webhook_attempts = $3 WHERE batch_id = $1`,
		id, by, attempts))(b)
}

// A webhook that no one could send for more than a day is tried as often as others.
func TestWebhooksAfterADowntime(t *testing.T) {
	t.Parallel()
	host := newReceiver(t, 503, 200)
	conns := operator(t, true, host.URL)
	b := setup(t, conns)
	id := b.due(host.URL, 1)[0]
	b.age(id, 25*time.Hour, 0)
	view := b.runHooks(b.webhooks(conns), b.lease(), id,
		func(w *trackerclient.WebhookView) bool { return w.State != "due" })
	if view.State != "delivered" || view.Attempts != 2 {
		t.Errorf("%+v; want delivered at the second attempt", view)
	}
	host.wantTaken(t, 2)
}

// A receiver that says that it is gone is told no more, and one that has failed for a day, twelve times, neither.
func TestWebhooksThatAreGivenUp(t *testing.T) {
	t.Parallel()
	gone, broken := newReceiver(t, 410), newReceiver(t, 500)
	conns := operator(t, true, gone.URL, broken.URL)
	b := setup(t, conns)
	hooks, lease := b.webhooks(conns), b.lease()
	for _, host := range []*receiver{gone, broken} {
		id := b.due(host.URL, 1)[0]
		before := 0
		if host == broken {
			before = 11
			b.age(id, 24*time.Hour, before)
		}
		view := b.runHooks(hooks, lease, id, func(w *trackerclient.WebhookView) bool { return w.State != "due" })
		if view.State != "given_up" || view.Attempts != before+1 || view.Error == "" {
			t.Errorf("%+v; want abandoned after %d attempts", view, before+1)
		}
		host.wantTaken(t, 1)
	}
	// Who does not lead any more notes nothing.
	id := b.due(gone.URL, 1)[0]
	b.resign(lease)
	_, err := hooks.Run(t.Context(), lease)
	testenv.Fails(t, err, "a leader that has resigned notes a delivery")
	if view := b.webhook(id, trackers.All); view.State != "due" || view.Attempts != 0 {
		t.Errorf("%+v", view)
	}
}
