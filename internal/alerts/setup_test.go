package alerts_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/alert"
	"github.com/tranchehq/tranche/workqueue/database"
	store "github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/session"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// soon is more than anything here takes on a busy machine.
const soon = 2 * time.Minute

const (
	hookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	mailSecret = "the-password-of-the-mail"
	chatPath   = "/services/T000/B000/a-secret-of-the-chat"
)

// bench is a database, and a health report that the test makes.
type bench struct {
	*testing.T
	pool     *pgxpool.Pool
	store    alert.Store
	health   store.Store
	sessions session.Store
	conns    *connections.Connections

	mu     sync.Mutex
	report health.Report
}

func setup(t *testing.T) *bench {
	t.Helper()
	pool := testenv.Pool(t)
	db := database.New(pool)
	return &bench{T: t, pool: pool, store: alert.New(db), health: store.New(db), sessions: session.New(db),
		conns: &connections.Connections{}}
}

// withReceiver is a bench with a host that is notified by HTTP.
func withReceiver(t *testing.T, answer ...int) (*bench, *receiver) {
	t.Helper()
	host, b := newReceiver(t, answer...), setup(t)
	b.operator("", host.URL)
	return b, host
}

// withRule has a rule r for that host too, and who looks and tells under a lease.
func withRule(t *testing.T, rule string, answer ...int) (*bench, *receiver, *alerts.LeaderTask, workqueue.Lease) {
	t.Helper()
	b, host := withReceiver(t, answer...)
	b.apply("r", rule+host.rule())
	return b, host, b.task(), b.lease()
}

// operator is the operator's file: secrets for receivers of this machine, and a mail server if one is given.
func (b *bench) operator(mailServer string, hosts ...string) {
	b.Helper()
	dir := b.TempDir()
	write := func(name, text string) {
		testenv.NoError(b, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("hooks.key", hookSecret)
	write("mail.key", mailSecret)
	quoted, _ := json.Marshal(append(hosts, "http://127.0.0.1:1"))
	text := fmt.Sprintf("secrets:\n  hooks: {file: hooks.key, hosts: %s}\n", quoted)
	for i, host := range hosts {
		write(fmt.Sprintf("chat%d.key", i), host+chatPath)
		text += fmt.Sprintf("  chat%d: {file: chat%d.key, hosts: %s}\n", i, i, quoted)
	}
	text += "http: {allow_private: [127.0.0.1]}\n"
	if mailServer != "" {
		text += fmt.Sprintf("smtp: {server: %q, from: tranche@bank.example, tls: none, username: tranche, "+
			"password: {file: mail.key}, recipients: [bank.example]}\n", mailServer)
	}
	conns := testenv.Must(connections.Parse(filepath.Join(dir, "connections.yaml"), []byte(text)))(b)
	b.conns = conns
}

// leader task is a node's; change says what is particular about it.
func (b *bench) task(change ...func(*alerts.Config, *alerts.TaskConfig)) *alerts.LeaderTask {
	b.Helper()
	web, err := httpfetch.New(b.conns, httpfetch.Config{ConnectTimeout: time.Minute}) // many tests run concurrently
	testenv.NoError(b, err)
	b.Cleanup(web.Close)
	config := alerts.Config{Connections: b.conns, Transport: web.Transport(), Public: "https://tranche.bank.example",
		Timeout: time.Minute}
	with := alerts.TaskConfig{Store: b.store, FirstRetry: time.Millisecond,
		Health: b.reported,
	}
	for _, f := range change {
		f(&config, &with)
	}
	with.Receivers = testenv.Must(alerts.NewReceivers(config))(b)
	return testenv.Must(alerts.New(with))(b)
}

// reported is what the test says, and what the health says of runs that are there.
func (b *bench) reported(ctx context.Context) (*health.Report, error) {
	facts, err := b.health.Health(ctx, store.Limits{Listed: 10_000})
	b.mu.Lock()
	defer b.mu.Unlock()
	report := b.report
	report.Conditions, report.Muted = slices.Clone(b.report.Conditions), slices.Clone(b.report.Muted)
	for i := 0; err == nil && i < len(facts.Conditions); i++ {
		c := facts.Conditions[i]
		muted := slices.ContainsFunc(report.Muted, func(a store.Condition) bool { return a.Key() == c.Key() })
		if c.Kind.Rule().Change != "" && !muted {
			report.Conditions = append(report.Conditions, c)
		}
	}
	return &report, err
}

// condition is one of an endpoint without listeners.
func condition(endpoint string, severity store.Severity) store.Condition {
	now := time.Now()
	return store.NoListeners.Condition(now, store.Row{"subject": endpoint, "severity": string(severity), "since": now,
		"runs": 2, "out": 0})
}

func (b *bench) says(conditions ...store.Condition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.report.Conditions = conditions
}

// apply saves a rule that neither waits nor pauses, except what it says.
func (b *bench) apply(name, text string) {
	b.Helper()
	for _, field := range []string{"wait: 0s\n", "interval: 0s\n"} {
		if !strings.Contains(text, field[:5]) {
			text += field
		}
	}
	spec := testenv.Must(alerts.Parse(name, []byte(text)))(b)
	doc := testenv.Must(json.Marshal(spec))(b)
	testenv.Must(b.store.Apply(b.Context(), workqueue.Document{Name: name, Spec: doc, Source: text}, "ann"))(b)
}

// lease makes the test the leader, until it ends: it is never prolonged.
func (b *bench) lease() workqueue.Lease {
	b.Helper()
	id, err := b.sessions.StartSession(b.Context(), session.NodeInfo{Host: "test", PID: 1, Version: "test"}, time.Hour)
	testenv.NoError(b, err)
	return testenv.Must(b.sessions.Lead(b.Context(), id, time.Hour))(b)
}

func (b *bench) look(d *alerts.LeaderTask, lease workqueue.Lease) {
	b.Helper()
	testenv.Must(d.Look(b.Context(), lease))(b)
}

func (b *bench) send(d *alerts.LeaderTask, lease workqueue.Lease) {
	b.Helper()
	testenv.Must(d.Send(b.Context(), lease))(b)
}

func (b *bench) turn(d *alerts.LeaderTask, lease workqueue.Lease) {
	b.Helper()
	b.look(d, lease)
	b.send(d, lease)
}

func (b *bench) sendUntil(d *alerts.LeaderTask, lease workqueue.Lease, what string, so func() bool) {
	b.Helper()
	testenv.Until(b, soon, what, func() bool {
		if !so() {
			b.send(d, lease)
		}
		return so()
	})
}

func (b *bench) messages(rule string) []alert.AlertMessage {
	b.Helper()
	return testenv.Must(b.store.Messages(b.Context(), alert.MessageFilter{Alert: rule}))(b).Messages
}

func (b *bench) exec(sql string, args ...any) {
	b.Helper()
	testenv.Must(b.pool.Exec(b.Context(), sql, args...))(b)
}

// run makes a run that is there, as far as alerts go.
func (b *bench) run(name, plan string, hold any) workqueue.RunID {
	b.Helper()
	id := uuid.Must(uuid.NewV7())
	b.exec(`INSERT INTO batchrun (id, name, plan, spec, state, items, sealed_at, hold, held_at, held_by)
		VALUES ($1, $2, $3, '{}', 'running', 10, tranche_now(), $4::text,
			CASE WHEN $4::text IS NOT NULL THEN tranche_now() END, 'ann')`,
		id, name, plan, hold)
	return workqueue.RunID(id)
}

// complete ends a run, and tells it as whoever records the last of its items does.
func (b *bench) complete(run workqueue.RunID, generation, failed int) {
	b.Helper()
	b.exec(`UPDATE batchrun SET state = 'completed', finished_at = tranche_now(), done = items - $2, failed = $2
		WHERE id = $1`,
		run, failed)
	b.exec(`INSERT INTO run_event (id, run_id, generation, kind, payload)
		VALUES (gen_random_uuid(), $1, $2, 'completed', jsonb_build_object('done', 10 - $3::int, 'failed', $3::int))`,
		run, generation, failed)
}

// receiver is a host that is notified by HTTP.
type receiver struct {
	*httptest.Server

	mu     sync.Mutex
	answer []int // what it answers, one at a time; then 204
	got    []*http.Request
	bodies [][]byte
}

func newReceiver(t *testing.T, answer ...int) *receiver {
	t.Helper()
	r := &receiver{answer: answer}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		defer r.mu.Unlock()
		status := http.StatusNoContent
		if n := len(r.got); n < len(r.answer) {
			status = r.answer[n]
		}
		r.got, r.bodies = append(r.got, req), append(r.bodies, body)
		w.Header().Set("Location", "http://127.0.0.1:1/elsewhere")
		w.WriteHeader(status)
		_, _ = w.Write([]byte("it has " + hookSecret + " and " + req.URL.Path))
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.got)
}

func (r *receiver) told(t *testing.T) (all []alerts.Message) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, body := range r.bodies {
		var doc struct {
			Type string
			Data alerts.Message
		}
		if err := json.Unmarshal(body, &doc); err != nil || doc.Type != "alert" ||
			doc.Data.ID != r.got[i].Header.Get("webhook-id") || r.got[i].Header.Get("webhook-signature") == "" {
			t.Errorf("it was reported %s, %v, by %v", body, err, r.got[i].Header)
		}
		all = append(all, doc.Data)
	}
	return all
}

func (r *receiver) rule() string {
	return fmt.Sprintf("to: {webhook: {url: %q, secret: hooks}}\n", r.URL+"/done")
}
