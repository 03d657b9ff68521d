package api_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/identity"
	"github.com/tranchehq/tranche/workqueue/streams"
)

// mutation is a use of an operation that changes something, and the audit row that it must leave. What begins or ends
// with it has nothing before or after.
type mutation struct {
	op, path, body string // the path with what its parameters mean here
	action         string
	before, after  string // a part of what the row says was there, and is there now
}

// secretHere stands for the secret of the token that the test has.
const secretHere = "SECRET"

// batchHere is the tracker batch that the test opens.
const batchHere = "0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d58"

// unaudited are operations that are used thousands of times a second: a row of the audit log for each would be worth
// nothing and cost more than they do. What they came to is in the counts of the thing that they are about.
func unaudited() []string {
	return []string{
		"POST /trackers/{id}/groups", "POST /trackers/{id}/ack", "POST /trackers/ack", "POST /collectors/{name}/ops",
	}
}

// mutations are every operation that changes something, in an order in which each finds something to change.
func mutations() []mutation {
	return []mutation{
		{op: "POST /plans", path: "/plans?name=p", body: "steps: [{endpoint: echo}]", action: "plan_apply", before: ``, after: `"version": 1`},
		{op: "DELETE /plans/{name}", path: "/plans/p", body: "", action: "plan_delete", before: `"version": 1`, after: ``},
		{op: "POST /runs", path: "/runs?endpoint=echo&name=new", body: three, action: "start", before: ``, after: `"items": 3`},
		{op: "POST /runs/open", path: "/runs/open", body: `{"endpoint":"echo","name":"later"}`, action: "open", before: ``, after: `"plan": "echo"`},
		{op: "POST /runs/{run}/items", path: "/runs/later/items", body: three, action: "add", before: `"items": 0`, after: `"items": 3`},
		{op: "POST /runs/{run}/seal", path: "/runs/later/seal", body: `{"expect":3}`, action: "seal", before: `"sealed": false`, after: `"sealed": true`},
		{op: "POST /runs/{run}/settings", path: "/runs/it/settings", body: `{"chunk":9}`, action: "set", before: `"chunk": "500"`, after: `"chunk": "9"`},
		{op: "POST /runs/{run}/pause", path: "/runs/new/pause", body: `{}`, action: "pause", before: `"hold": null`, after: `"hold": "operator"`},
		{op: "POST /runs/{run}/resume", path: "/runs/new/resume", body: `{}`, action: "resume", before: `"hold": "operator"`, after: `"hold": null`},
		{op: "POST /runs/{run}/approve", path: "/runs/canary/approve", body: `{}`, action: "approve", before: `"waiting"`, after: `"passed"`},
		{op: "POST /runs/approve", path: "/runs/approve", body: `{"all":true}`, action: "approve", before: `"waiting"`, after: `"passed"`},
		{op: "POST /runs/pause", path: "/runs/pause", body: `{"all":true}`, action: "pause", before: `"hold": null`, after: `"hold": "operator"`},
		{op: "POST /runs/resume", path: "/runs/resume", body: `{"all":true}`, action: "resume", before: `"hold": "operator"`, after: `"hold": null`},
		{op: "POST /runs/{run}/notes", path: "/runs/it/notes", body: `{"text":"seen"}`, action: "note", before: ``, after: `"reason": "seen"`},
		{op: "POST /runs/{run}/rerun", path: "/runs/it/rerun", body: `{"keys":["2","3"],"canary":1}`, action: "rerun", before: `"generation": 1`,
			after: `"generation": 2`},
		{op: "POST /runs/{run}/reset", path: "/runs/it/reset", body: `{"all":true}`, action: "reset", before: `"generation": 2`, after: `"generation": 3`},
		{op: "POST /runs/{run}/cancel", path: "/runs/new/cancel", body: `{}`, action: "cancel", before: `"running"`, after: `"cancelled"`},
		{op: "POST /runs/cancel", path: "/runs/cancel", body: `{"all":true}`, action: "cancel", before: `"running"`, after: `"cancelled"`},
		{op: "POST /endpoints/{name}/settings", path: "/endpoints/echo/settings", body: `{"rate":5}`, action: "endpoint_set", before: `"rate": 0`,
			after: `"rate": 5`},
		{op: "POST /dead-letters/requeue", path: "/dead-letters/requeue", body: `{"endpoint":"lost"}`, action: "dead_letter_requeue",
			before: `"waiting": 1`, after: `"requeued": 1`},
		{op: "POST /dead-letters/drop", path: "/dead-letters/drop", body: `{"endpoint":"echo"}`, action: "dead_letter_drop", before: `"waiting": 1`,
			after: `"dropped": 1`},
		{op: "POST /schedules", path: "/schedules?name=s", body: nightly, action: "schedule_apply", before: ``, after: `"version": 1`},
		{op: "POST /schedules/{name}/run-now", path: "/schedules/s/run-now", body: "", action: "schedule_run_now", before: ``, after: `"version": 1`},
		{op: "POST /schedules/{name}/pause", path: "/schedules/s/pause", body: "", action: "schedule_pause", before: `"active"`, after: `"paused"`},
		{op: "POST /schedules/{name}/resume", path: "/schedules/s/resume", body: "", action: "schedule_resume", before: `"paused"`, after: `"active"`},
		{op: "DELETE /schedules/{name}", path: "/schedules/s", body: "", action: "schedule_delete", before: `"active"`, after: ``},
		{op: "POST /alerts", path: "/alerts?name=a", body: "when: {runs: [paused]}\nto: {command: page}\n", action: "alert_apply", before: ``,
			after: `"version": 1`},
		{op: "POST /alerts/{name}/test", path: "/alerts/a/test", body: "", action: "alert_test", before: ``, after: `"message"`},
		{op: "POST /alerts/{name}/pause", path: "/alerts/a/pause", body: "", action: "alert_pause", before: `"active"`, after: `"paused"`},
		{op: "POST /alerts/{name}/resume", path: "/alerts/a/resume", body: "", action: "alert_resume", before: `"paused"`, after: `"active"`},
		{op: "DELETE /alerts/{name}", path: "/alerts/a", body: "", action: "alert_delete", before: `"active"`, after: ``},
		{op: "POST /collectors", path: "/collectors?name=c", body: "endpoint: echo\n", action: "collector_apply", before: ``, after: `"version": 1`},
		{op: "POST /collectors/{name}/pause", path: "/collectors/c/pause", body: "", action: "collector_pause", before: `"active"`, after: `"paused"`},
		{op: "POST /collectors/{name}/resume", path: "/collectors/c/resume", body: "", action: "collector_resume", before: `"paused"`, after: `"active"`},
		{op: "POST /collectors/{name}/drain", path: "/collectors/c/drain", body: "", action: "collector_drain", before: ``, after: `"ops": 0`},
		{op: "POST /collectors/{name}/requeue", path: "/collectors/parking/requeue", body: `{"ids":["a1"]}`, action: "collector_requeue", before: ``,
			after: `"ops": 1`},
		{op: "POST /collectors/{name}/drop", path: "/collectors/parking/drop", body: `{"keys":["b"]}`, action: "collector_drop", before: ``, after: `"ops": 1`},
		{op: "DELETE /collectors/{name}", path: "/collectors/c", body: "", action: "collector_delete", before: `"version": 1`, after: ``},
		{op: "PUT /retention/{kind}", path: "/retention/runs", body: `{"age":"90d"}`, action: "retention_set", before: `"age": null`, after: `"age": "90d"`},
		{op: "POST /retention/run", path: "/retention/run", body: `{}`, action: "retention_run", before: ``, after: ``},
		{op: "POST /streams/settings", path: "/streams/settings", body: `{"replicas":1}`, action: "streams_set", before: `"replicas": "auto"`,
			after: `"replicas": 1`},
		{op: "POST /trackers", path: "/trackers", body: `{"id":"` + batchHere + `","owner":"o"}`, action: "tracker_open", before: ``, after: `"owner": "o"`},
		{op: "POST /trackers/{id}/seal", path: "/trackers/" + batchHere + "/seal", body: "", action: "tracker_seal", before: ``, after: `"completed": true`},
		{op: "DELETE /trackers/{id}", path: "/trackers/" + batchHere, body: "", action: "tracker_delete", before: ``, after: ``},
		{op: "POST /tokens", path: "/tokens", body: `{"name":"ci","role":"viewer","expires_in":"1h"}`, action: "token_create", before: ``,
			after: `"role": "viewer"`},
		{op: "POST /tokens/{id}/revoke", path: "/tokens/ci/revoke", body: "", action: "token_revoke", before: `"state": "active"`, after: `"state": "revoked"`},
		{op: "POST /session", path: "/session", body: `{"token":"` + secretHere + `"}`, action: "login", before: ``, after: `"role": "admin"`},
		{op: "POST /sessions/revoke", path: "/sessions/revoke", body: `{"user":"guest"}`, action: "session_revoke", before: `"sessions": 1`, after: `"sessions": 0`},
		{op: "DELETE /session", path: "/session", body: "", action: "logout", before: `"role": "admin"`, after: ``},
	}
}

// PROOF: who may do what, 18.
// Every operation that may change something leaves a row in the audit log: who, what, before and after. Who it was says
// the token, whatever the client says. One that is refused leaves none.
func TestEveryMutationIsAudited(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.finish(b.start("name=it").Run)
	for _, name := range []string{"canary", "another"} {
		run := b.start("canary=1&name=" + name).Run
		b.finish(run)
		if verdict, err := control.New(b.store).CheckCanary(t.Context(), run); err != nil {
			t.Fatal(verdict, err)
		}
	}
	b.bury("echo", deadletter.DeadLetter{Body: []byte(`{}`)})
	b.bury("lost", deadletter.DeadLetter{Body: []byte(`{}`)})
	b.parking()
	if _, err := streams.New(b.store).StreamSettings(t.Context(), streams.StreamValues{}); err != nil {
		t.Fatal(err)
	}
	_, err := identity.New(b.store).BeginWebSession(t.Context(), identity.NewWebSession{User: "guest", Role: "viewer",
		Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	covered := map[string]bool{}
	secret := b.locked().token("ann", access.Admin, 0).secret
	for _, m := range mutations() {
		covered[m.op] = true
		method, _, _ := strings.Cut(m.op, " ")
		m.body = strings.ReplaceAll(m.body, secretHere, secret)
		b.mutate(method, m, secret)
	}
	for _, op := range b.mutatingOperations("Authorization", "Bearer "+secret) {
		if !covered[op] && !slices.Contains(unaudited(), op) {
			t.Errorf("%s is in no test of the audit log; add it to mutations", op)
		}
	}
}

func (b *bench) mutate(method string, m mutation, secret string) {
	b.Helper()
	kind := "application/json"
	if slices.Contains([]string{"POST /plans", "POST /schedules", "POST /collectors", "POST /runs",
		"POST /runs/{run}/items"}, m.op) {
		kind = "text/plain"
	}
	headers := []string{"Content-Type", kind, api.ActorHeader, "mallory", "Authorization", "Bearer " + secret}
	if m.op == "DELETE /session" {
		headers = append(b.logIn(secret).headers(), "Sec-Fetch-Site", "same-origin")
	}
	last := b.lastAudit()
	wrong := m.path + map[bool]string{true: "&", false: "?"}[strings.Contains(m.path, "?")] + "wrong=1"
	if code, text := b.ask(method, api.Prefix+wrong, strings.NewReader("\x00"), headers...); code < 400 ||
		b.lastAudit() != last {
		b.Errorf("%s %s, made wrong on purpose: %d %s; want a refusal without an audit row", method, m.path, code, text)
	}
	code, text := b.ask(method, api.Prefix+m.path, strings.NewReader(m.body), headers...)
	if code >= 300 {
		b.Errorf("%s: %d %s", m.op, code, text)
		return
	}
	rows, err := b.pool.Query(b.Context(), `SELECT action, coalesce(before::text, ''), coalesce(after, detail)::text
		FROM audit_log WHERE id > $1 AND actor = 'ann'`, last)
	if err != nil {
		b.Fatal(err)
	}
	var action, before, after string
	var seen []string
	found := false
	if _, err := pgx.ForEachRow(rows, []any{&action, &before, &after}, func() error {
		seen = append(seen, action+": "+before+" → "+after)
		found = found || action == m.action && strings.Contains(before, m.before) && strings.Contains(after, m.after)
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	if !found {
		b.Errorf("%s is audited as %q; want %s: …%s… → …%s…", m.op, seen, m.action, m.before, m.after)
	}
}

func (b *bench) lastAudit() (id int64) {
	b.Helper()
	if err := b.pool.QueryRow(b.Context(), `SELECT coalesce(max(id), 0) FROM audit_log`).Scan(&id); err != nil {
		b.Fatal(err)
	}
	return id
}

// keepsNothing tells operations that read what they are sent, and change nothing.
func keepsNothing(path string) bool { return path == "/items/preview" || path == "/schedules/preview" }

// mutatingOperations are those of the description that are not GETs, like "POST /runs".
func (b *bench) mutatingOperations(header ...string) (all []string) {
	b.Helper()
	_, text := b.ask(http.MethodGet, api.Prefix+"/openapi.json", nil, header...)
	var described struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	if err := json.Unmarshal(text, &described); err != nil {
		b.Fatal(err)
	}
	for path, methods := range described.Paths {
		for method := range methods {
			if method != "get" && !keepsNothing(path) {
				all = append(all, strings.ToUpper(method)+" "+path)
			}
		}
	}
	if len(all) == 0 {
		b.Fatal("the description has no operation that changes anything")
	}
	return all
}
