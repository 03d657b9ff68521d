package fetch_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/gather/fetch/sqlfetch"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/metrics"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	nodefetch "github.com/tranchehq/tranche/orchestrator/fetch"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/start"
)

// PROOF: who may do what, 16 and 17. Whatever each kind of step answers, with an item's key and payload in it, the
// node's log and metrics have codes and ids, and so has the audit log. A secret that an answer repeats is nowhere.
func TestFailuresOfEachKindAreNotLogged(t *testing.T) {
	t.Parallel()
	const canary, secret = "CANARY-4711", "CANARY-secret-0815"
	b := &bundle{nodetest.ServersOnly(t)}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "no such customer: "+r.URL.String()+r.Header.Get("X-Token"), http.StatusBadRequest)
	}))
	t.Cleanup(web.Close)
	dir := t.TempDir()
	testenv.NoError(t, os.WriteFile(filepath.Join(dir, "dsn"), []byte(b.Pool.Config().ConnString()), 0o600))
	testenv.NoError(t, os.WriteFile(filepath.Join(dir, "token"), []byte(secret), 0o600))
	conns := testenv.Must(connections.Parse(filepath.Join(dir, "c.yaml"), []byte("http: {allow_private: [127.0.0.1]}\n"+
		"secrets: {token: {file: token, hosts: [\""+web.URL+"\"]}}\n"+
		"sources: {ledger: {dsn: {file: dsn}, allow_superuser: true}}")))(t)
	web1, sql := testenv.Must(httpfetch.New(conns, httpfetch.Config{}))(t), sqlfetch.New(conns)
	t.Cleanup(web1.Close)
	t.Cleanup(sql.Close)
	core, seen := observer.New(zap.InfoLevel)
	cfg := nodetest.Config(t)
	cfg.Log = zap.New(core)
	measured := testenv.Must(metrics.New(metrics.Config{}))(t)
	cfg.Meter = measured
	cfg.Fetchers = map[workqueue.Kind]nodefetch.Fetchers{workqueue.KindHTTP: web1, workqueue.KindSQL: sql}
	cfg.Locals = map[string]fetch.Fetcher{
		"panics": fetch.Each(func(_ context.Context, item *fetch.Item) (fetch.Part, error) { panic(item.Key) }),
		"fails": fetch.Func(func(_ context.Context, req *fetch.Request) ([]fetch.Slot, error) {
			return nil, errors.New("no account " + req.Items[0].Key)
		}),
	}
	b.Node = b.Join(t, b.Store, b.NC, cfg).Node
	b.Serve(t, "statement", func(_ context.Context, c *nodetest.Chunk) error {
		if len(c.Items()) > 1 {
			return fmt.Errorf("the chunk of %s failed", c.Items()[0].Key)
		}
		c.Items()[0].Fail("no", "no account %s", c.Items()[0].Key)
		return nil
	})
	kinds := map[string]func(*workqueue.StepSpec){
		"panics": func(s *workqueue.StepSpec) { s.Kind, s.Endpoint = workqueue.KindLocal, "local:panics" },
		"fails":  func(s *workqueue.StepSpec) { s.Kind, s.Endpoint = workqueue.KindLocal, "local:fails" },
		"http": func(s *workqueue.StepSpec) {
			s.Kind, s.Endpoint = workqueue.KindHTTP, "http:127.0.0.1"
			s.Config = json.RawMessage(`{"url":"` + web.URL +
				`/{key}","method":"GET","headers":{"X-Token":"{secret.token}"},"concurrency":1,"timeout":"10s",` +
				`"max_bytes":1000}`)
		},
		"sql": func(s *workqueue.StepSpec) {
			s.Kind, s.Endpoint = workqueue.KindSQL, "sql:ledger"
			s.Config = json.RawMessage(`{"source":"ledger","query":"SELECT k AS id, k::int AS n FROM unnest($1::text[]) k",` +
				`"rows":"one","timeout":"10s","max_rows":10,"max_bytes":1000}`)
		},
		"direct": func(s *workqueue.StepSpec) { s.Kind, s.Endpoint = workqueue.KindDirect, "statement" },
		"stream": func(s *workqueue.StepSpec) { s.Endpoint = "statement" },
	}
	for name, change := range kinds {
		req, left := nodetest.Request(name), 2
		req.Steps[0].MaxAttempts, req.Steps[0].Timeout = 1, time.Minute
		change(&req.Steps[0])
		loaded := testenv.Must(b.Node.Runs().Start(t.Context(), req, func(item *start.LoadItem) error {
			if left--; left < 0 {
				return io.EOF
			}
			item.Key = fmt.Sprintf("%s-%d", canary, left)
			item.Payload = []byte(`{"id":"` + canary + `"}`)
			return nil
		}))(t)
		b.Want(t, loaded.Run, 1, 0, 2)
		testenv.Has(t, b.ErrorOf(t, loaded.Run, canary+"-0"), canary, "%s: the test shows nothing", name)
	}
	for _, entry := range seen.All() {
		fields := testenv.Must(json.Marshal(entry.ContextMap()))(t)
		if text := entry.Message + string(fields); strings.Contains(text, canary) {
			t.Errorf("an item is in the log: %s", text)
		}
	}
	families := testenv.Must(measured.Gatherer().Gather())(t)
	if said := fmt.Sprint(families); len(families) == 0 || strings.Contains(said, "CANARY") {
		t.Errorf("an item is in the metrics: %s", said)
	}
	testenv.Same(t, b.Number(t, `SELECT count(*) FROM audit_log a WHERE a::text LIKE '%CANARY%'`), 0,
		"rows of the audit log")
	testenv.Same(t, b.Number(t, `SELECT (SELECT count(*) FROM work_error e WHERE e::text LIKE '%CANARY-secret%')
		+ (SELECT count(*) FROM work_result r WHERE r::text LIKE '%CANARY-secret%')`), 0, "errors and results with a secret")
}
