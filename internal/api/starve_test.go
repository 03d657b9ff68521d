package api_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/identity"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// PROOF: who may do what, 19.
// However often a viewer asks for all of a run, most are told to come back, and there are
// connections left for an operator.
func TestReadersLeaveOperatorsRoom(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	run := b.Start("name=it").Run
	b.Answer(run, "", func(workqueue.Ordinal) []byte { return nil })
	const many, each = 20, 4
	for _, path := range []string{
		"/runs/it/errors?all=true", "/runs/it/errors?all=T&x", "/runs/it/errors?all=1", "/runs/it/export", "/runs/it/report",
		"/runs/it/errors?all", "/runs/it/errors", "/runs/it/explain", "/audit", "/runs?q=x;", "/runs?endpoint=x;y",
	} {
		b.Locked()
		b.Server.LetWait(100 * time.Millisecond)
		viewer := b.Token("vic", access.Viewer, 0)
		operator := []string{"Authorization", "Bearer " + b.Token("ops", access.Operator, 0).Secret}
		table, meanwhile := "work_result", "/runs/it"
		switch {
		case strings.HasSuffix(path, "explain"):
			table, meanwhile = "work_slice", "/runs"
		case path == "/audit":
			table = "audit_log"
		case strings.HasPrefix(path, "/runs?"):
			table, meanwhile = "batchrun", "/audit"
		}
		b.Session("Authorization", "Bearer "+viewer.Secret) // so that not all of them look the token up
		undo := b.Lock(table)
		answers := b.Crowd(many, api.Prefix+path, viewer.Secret)
		over := testenv.NewWatch(t).After(time.Minute)
		for refused, let := 0, 0; refused < many-each; {
			answer, ok := testenv.ReceiveBefore(answers, over)
			if !ok {
				t.Errorf("%s: %d of %d are answered", path, refused+let, many)
				break
			}
			odd := answer.StatusCode != http.StatusTooManyRequests || answer.Header.Get("Retry-After") == ""
			if !odd || answer.StatusCode == http.StatusUnprocessableEntity && strings.Contains(path, "&x") {
				refused++
				continue
			}
			let++ // one that was let in may be given up on a machine that is stalled
			if let > each || answer.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("%s is answered %d, %v; want 429", path, answer.StatusCode, answer.Header)
				break
			}
		}
		if code, text := b.Ask(http.MethodGet, api.Prefix+meanwhile, nil, operator...); code != http.StatusOK {
			t.Errorf("%s: meanwhile an operator gets %d %s", path, code, text)
		}
		undo()
	}
}

// What reads of a run, and is neither bounded nor a stream, reads little, as those that stand here do.
func TestWhatReadsARunIsBounded(t *testing.T) {
	t.Parallel()
	little := []string{"GET /api/v1/runs/{run}", "GET /api/v1/runs/{run}/events"}
	routes := apitest.Setup(t).Server.Routes()
	for i := range routes {
		route := &routes[i]
		read := strings.HasPrefix(route.Pattern, "GET /api/v1/runs/{run}")
		if read && !route.Bounded() && !slices.Contains(little, route.Pattern) {
			t.Errorf("%s is neither heavy nor broad", route.Pattern)
		}
	}
}

// PROOF: who may do what, 4.
// Whoever has taken all ordinary connections keeps no one from revoking his token, and neither
// heartbeats nor the leader tasks from going on.
func TestRevokingNeedsNoOrdinaryConnection(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	const conns = 4
	store, release, err := database.Open(t.Context(), url, database.PoolConfig{MaxConns: conns, LockTimeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	b := &apitest.Bench{T: t, Pool: testenv.Connect(t, url), Store: store}
	nc := testenv.Conn(t, testenv.NATS(t))
	node, err := orchestrator.New(store, nc, orchestrator.Config{Version: "test", Grace: time.Second,
		SessionTTL: time.Minute}) // one session, also on a machine that is stalled
	if err != nil {
		t.Fatal(err)
	}
	e := &apitest.Engine{Bench: &apitest.Bench{T: t}}
	e.Keep(node.Run)
	<-node.Ready()
	gate := testenv.Must(access.New(identity.New(store), access.Config{}))(t)
	b.Gated = true
	b.Over(api.NodeOf(node), nc, api.Config{Access: gate, QueryTimeout: time.Hour})
	b.Server.LetWait(time.Hour) // until they are revoked, and not until their turn does not come
	admin := []string{"Authorization", "Bearer " + b.Token("ann", access.Admin, 0).Secret, "Idempotency-Key", "once"}
	viewer := b.Token("vic", access.Viewer, 0)

	b.Session("Authorization", "Bearer "+viewer.Secret) // so that not all of them look the token up
	watch := testenv.NewWatch(t)
	unlock := b.Lock("plan")
	defer unlock()
	answers := b.Crowd(60, api.Prefix+"/plans", viewer.Secret)
	b.Until("all connections are taken", `SELECT count(*) = $1 FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		WHERE l.relation = 'plan'::regclass AND NOT l.granted AND a.datname = current_database()`, conns)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := inspect.New(store).Ping(ctx); err == nil {
		t.Fatal("there is an ordinary connection left: the test shows nothing")
	}
	const sweeps = `(SELECT (d->>'runs')::bigint FROM node_session, jsonb_array_elements(stats->'leader_tasks') d
		WHERE d->>'name' = 'sweep')`
	before := b.Number("SELECT coalesce("+sweeps+", $1)", 0)
	if code, text := b.Ask(http.MethodPost, api.Prefix+"/tokens/vic/revoke", nil, admin...); code != http.StatusOK {
		t.Fatalf("revoking: %d %s", code, text)
	}
	b.Until("heartbeats and sweeps go on", `SELECT count(*) > 0 FROM node_session WHERE `+sweeps+` > $1`, before+1)
	for range cap(answers) {
		answer := <-answers
		if answer.StatusCode == http.StatusServiceUnavailable && watch.Longest() > access.RevocationTime/2 {
			continue // it was ended before: on a machine that was stalled it was not to be learned whether it may go on
		}
		if answer.StatusCode != http.StatusUnauthorized {
			t.Errorf("a request of the token that was revoked is answered %d", answer.StatusCode)
		}
	}
}
