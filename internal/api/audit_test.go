package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/doctor"
	"github.com/tranchehq/tranche/workqueue/identity"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/retention"
	"github.com/tranchehq/tranche/workqueue/session"
)

// secretHere stands for the secret of the token that the test has.
const secretHere = "SECRET"

// actHere stands for an act that zoe asked for, as ann.
const actHere = "ACT"

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
		{"POST /plans", "/plans?name=p", "steps: [{endpoint: echo}]", "plan_apply", ``, `"version": 1`},
		{"DELETE /plans/{name}", "/plans/p", "", "plan_delete", `"version": 1`, ``},
		{"POST /runs", "/runs?endpoint=echo&name=new", apitest.Three, "start", ``, `"items": 3`},
		{"POST /runs/open", "/runs/open", `{"endpoint":"echo","name":"later"}`, "open", ``, `"plan": "echo"`},
		{"POST /runs/{run}/items", "/runs/later/items", apitest.Three, "add", `"items": 0`, `"items": 3`},
		{"POST /runs/{run}/seal", "/runs/later/seal", `{"expect":3}`, "seal", `"sealed": false`, `"sealed": true`},
		{"POST /runs/{run}/settings", "/runs/it/settings", `{"chunk":9}`, "set", `"chunk": "500"`, `"chunk": "9"`},
		{"POST /runs/{run}/pause", "/runs/new/pause", `{}`, "pause", `"hold": null`, `"hold": "operator"`},
		{"POST /runs/{run}/resume", "/runs/new/resume", `{}`, "resume", `"hold": "operator"`, `"hold": null`},
		{"POST /runs/{run}/approve", "/runs/canary/approve", `{}`, "approve", `"waiting"`, `"passed"`},
		{"POST /runs/approve", "/runs/approve", `{"all":true}`, "approve", `"waiting"`, `"passed"`},
		{"POST /runs/pause", "/runs/pause", `{"all":true}`, "pause", `"hold": null`, `"hold": "operator"`},
		{"POST /runs/resume", "/runs/resume", `{"all":true}`, "resume", `"hold": "operator"`, `"hold": null`},
		{"POST /runs/{run}/notes", "/runs/it/notes", `{"text":"seen"}`, "note", ``, `"reason": "seen"`},
		{"POST /runs/{run}/accept", "/runs/it/accept", `{"failed":true,"reason":"seen"}`, "accept", `"accepted": 0`,
			`"accepted": 1`},
		{"POST /runs/{run}/accept", "/runs/it/accept", `{"failed":true,"withdraw":true}`, "accept_withdraw",
			`"accepted": 1`, `"accepted": 0`},
		{"POST /runs/{run}/rerun", "/runs/it/rerun", `{"keys":["2","3"],"canary":1}`, "rerun", `"generation": 1`,
			`"generation": 2`},
		{"POST /runs/{run}/reset", "/runs/it/reset", `{"all":true}`, "reset", `"generation": 2`, `"generation": 3`},
		{"POST /runs/{run}/correct", "/runs/it/correct", "id,name\n=1,anna\n", "correct", `"generation": 3`,
			`"generation": 4`},
		{"POST /runs/{run}/items/{key}/correct", "/runs/it/items/=1/correct", `{"payload":{"id":"=1","name":"annie"}}`,
			"correct", `"generation": 4`, `"generation": 5`},
		{"POST /runs/{run}/cancel", "/runs/new/cancel", `{}`, "cancel", `"running"`, `"cancelled"`},
		{"POST /runs/cancel", "/runs/cancel", `{"all":true}`, "cancel", `"running"`, `"cancelled"`},
		{"POST /erase", "/erase", `{"key":"no one","reason":"article 17"}`, "erase", ``, `"reason": "article 17"`},
		{"POST /runs/{run}/delete", "/runs/old/delete", `{"reason":"a rehearsal"}`, "delete", `"name": "old"`,
			`"reason": "a rehearsal"`},
		{"POST /endpoints/{name}/settings", "/endpoints/echo/settings", `{"rate":5}`, "endpoint_set", `"rate": 0`,
			`"rate": 5`},
		{"POST /health/ack", "/health/ack", `{"kind":"dead_letters","subject":"lost"}`, "health_ack", ``,
			`"state": "acknowledged"`},
		{"POST /health/mute", "/health/mute", `{"kind":"dead_letters","for":"8h","reason":"known"}`, "health_mute",
			`"acknowledged"`, `"reason": "known"`},
		{"POST /health/clear", "/health/clear", `{"kind":"dead_letters"}`, "health_clear", `"reason": "known"`, ``},
		{"POST /dead-letters/requeue", "/dead-letters/requeue", `{"endpoint":"lost"}`, "dead_letter_requeue",
			`"waiting": 1`, `"requeued": 1`},
		{"POST /dead-letters/drop", "/dead-letters/drop", `{"endpoint":"echo"}`, "dead_letter_drop", `"waiting": 1`,
			`"dropped": 1`},
		{"POST /schedules", "/schedules?name=s", apitest.Nightly, "schedule_apply", ``, `"version": 1`},
		{"POST /schedules/{name}/run-now", "/schedules/s/run-now", "", "schedule_run_now", ``, `"version": 1`},
		{"POST /schedules/{name}/pause", "/schedules/s/pause", "", "schedule_pause", `"active"`, `"paused"`},
		{"POST /schedules/{name}/resume", "/schedules/s/resume", "", "schedule_resume", `"paused"`, `"active"`},
		{"DELETE /schedules/{name}", "/schedules/s", "", "schedule_delete", `"active"`, ``},
		{"POST /alerts", "/alerts?name=a", "when: {runs: [paused]}\nto: {command: page}\n", "alert_apply", ``,
			`"version": 1`},
		{"POST /alerts/{name}/test", "/alerts/a/test", "", "alert_test", ``, `"message"`},
		{"POST /alerts/{name}/pause", "/alerts/a/pause", "", "alert_pause", `"active"`, `"paused"`},
		{"POST /alerts/{name}/resume", "/alerts/a/resume", "", "alert_resume", `"paused"`, `"active"`},
		{"DELETE /alerts/{name}", "/alerts/a", "", "alert_delete", `"active"`, ``},
		{"POST /collectors", "/collectors?name=c", "endpoint: echo\n", "collector_apply", ``, `"version": 1`},
		{"POST /collectors/{name}/pause", "/collectors/c/pause", "", "collector_pause", `"active"`, `"paused"`},
		{"POST /collectors/{name}/resume", "/collectors/c/resume", "", "collector_resume", `"paused"`, `"active"`},
		{"POST /collectors/{name}/drain", "/collectors/c/drain", "", "collector_drain", ``, `"ops": 0`},
		{"POST /collectors/{name}/requeue", "/collectors/parking/requeue", `{"ids":["a1"]}`, "collector_requeue", ``,
			`"ops": 1`},
		{"POST /collectors/{name}/drop", "/collectors/parking/drop", `{"keys":["b"]}`, "collector_drop", ``, `"ops": 1`},
		{"DELETE /collectors/{name}", "/collectors/c", "", "collector_delete", `"version": 1`, ``},
		{"PUT /namespaces/{name}", "/namespaces/team-a", `{"max_runs":2}`, "namespace_set", ``, `"max_runs": 2`},
		{"DELETE /namespaces/{name}", "/namespaces/team-a", "", "namespace_delete", `"max_runs": 2`, ``},
		{"PUT /retention/{kind}", "/retention/runs", `{"age":"90d"}`, "retention_set", `"age": null`, `"age": "90d"`},
		{"POST /acts/{id}/confirm", "/acts/" + actHere + "/confirm", "", "retention_set", `"age": "90d"`, `"age": "80d"`},
		{"POST /acts/{id}/reject", "/acts/" + actHere + "/reject", "", "act_reject", ``, ``},
		{"POST /retention/run", "/retention/run", `{}`, "retention_run", ``, ``},
		{"POST /streams/settings", "/streams/settings", `{"replicas":1}`, "streams_set", `"replicas": "auto"`,
			`"replicas": 1`},
		{"POST /trackers", "/trackers", `{"id":"` + batchHere + `","owner":"o"}`, "tracker_open", ``, `"owner": "o"`},
		{"POST /trackers/{id}/seal", "/trackers/" + batchHere + "/seal", "", "tracker_seal", ``, `"completed": true`},
		{"DELETE /trackers/{id}", "/trackers/" + batchHere, "", "tracker_delete", ``, ``},
		{"POST /tokens", "/tokens", `{"name":"ci","role":"viewer","expires_in":"1h"}`, "token_create", ``,
			`"role": "viewer"`},
		{"POST /tokens/{id}/rotate", "/tokens/ci/rotate", `{"overlap":"0s"}`, "token_rotate", `"state": "active"`,
			`"successor"`},
		{"POST /tokens/{id}/revoke", "/tokens/ci/revoke", "", "token_revoke", `"state": "active"`, `"state": "revoked"`},
		{"POST /session", "/session", `{"token":"` + secretHere + `"}`, "login", ``, `"role": "admin"`},
		{"POST /sessions/revoke", "/sessions/revoke", `{"user":"guest"}`, "session_revoke", `"sessions": 1`, `"sessions": 0`},
		{"DELETE /session", "/session", "", "logout", `"role": "admin"`, ``},
	}
}

// PROOF: who may do what, 18 and 22.
// Every operation that may change something leaves a row in the audit log: who, what, before and after. Who it was says
// the token, whatever the client says. One that is refused leaves none.
func TestEveryMutationIsAudited(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	old := b.Start("name=old").Run
	b.Finish(old)
	b.LongAgo(old)
	b.Finish(b.Start("name=it").Run)
	for _, name := range []string{"canary", "another"} {
		run := b.Start("canary=1&name=" + name).Run
		b.Finish(run)
		if verdict, err := control.New(b.Store).CheckCanary(t.Context(), run); err != nil {
			t.Fatal(verdict, err)
		}
	}
	b.AddLetter("echo", deadletter.DeadLetter{Body: []byte(`{}`)})
	b.AddLetter("lost", deadletter.DeadLetter{Body: []byte(`{}`)})
	b.Parking()
	testenv.Must(session.New(b.Store).StreamSettings(t.Context(), session.StreamValues{}))(t)
	_, err := identity.New(b.Store).BeginWebSession(t.Context(), identity.NewWebSession{User: "guest", Role: "viewer",
		Life: time.Hour})
	testenv.NoError(t, err)
	covered := map[string]bool{}
	ann := b.Locked().Token("ann", access.Admin, 0)
	secret := ann.Secret
	for _, m := range mutations() {
		covered[m.op] = true
		method, _, _ := strings.Cut(m.op, " ")
		m.body = strings.ReplaceAll(m.body, secretHere, secret)
		if strings.Contains(m.path, actHere) {
			act := testenv.Must(identity.New(b.Store).AskAct(t.Context(), identity.Act{Kind: "retention", Method: "PUT",
				Path: api.Prefix + "/retention/runs", Input: []byte(`{"age":"80d"}`), AskedBy: "ann",
				Preview: []byte(`{"present":{"age":"90d"}}`)}, identity.Asker{Eyes: []string{"zoe"}, Token: &ann.ID}))(t)
			m.path = strings.ReplaceAll(m.path, actHere, act.ID)
		}
		mutate(b, method, m, secret)
	}
	for op := range operations(b, "Authorization", "Bearer "+secret) {
		if !covered[op] && !keepsNothing(op) && !slices.Contains(unaudited(), op) {
			t.Errorf("%s is in no test of the audit log; add it to mutations", op)
		}
	}
}

// mutation is a use of an operation that changes something, and the audit row that it must leave. What begins or ends
// with it has nothing before or after.
type mutation struct {
	op, path, body string // the path with what its parameters mean here
	action         string
	before, after  string // a part of what the row says was there, and is there now
}

func mutate(b *apitest.Bench, method string, m mutation, secret string) {
	b.Helper()
	kind := "application/json"
	if slices.Contains([]string{"POST /plans", "POST /schedules", "POST /collectors", "POST /runs",
		"POST /runs/{run}/items"}, m.op) {
		kind = "text/plain"
	}
	headers := []string{"Content-Type", kind, apicore.ActorHeader, "mallory", "Authorization", "Bearer " + secret}
	if m.op == "DELETE /session" {
		headers = append(b.LogIn(secret).Headers(), "Sec-Fetch-Site", "same-origin")
	}
	headers = append(headers, apicore.RequestHeader, "asked-7")
	last := lastAudit(b)
	wrong := m.path + map[bool]string{true: "&", false: "?"}[strings.Contains(m.path, "?")] + "wrong=1"
	if code, text := b.Ask(method, api.Prefix+wrong, strings.NewReader("\x00"), headers...); code < 400 ||
		lastAudit(b) != last {
		b.Errorf("%s %s, made wrong on purpose: %d %s; want a refusal without an audit row", method, m.path, code, text)
	}
	code, text := b.Ask(method, api.Prefix+m.path, strings.NewReader(m.body), headers...)
	if code >= 300 {
		b.Errorf("%s: %d %s", m.op, code, text)
		return
	}
	rows, err := b.Pool.Query(b.Context(), `SELECT action, coalesce(before::text, ''), coalesce(after, detail)::text
		FROM audit_log WHERE id > $1 AND actor = 'ann'`, last)
	testenv.NoError(b, err)
	var action, before, after string
	var seen []string
	found := false
	testenv.Must(pgx.ForEachRow(rows, []any{&action, &before, &after}, func() error {
		seen = append(seen, action+": "+before+" → "+after)
		found = found || action == m.action && strings.Contains(before, m.before) && strings.Contains(after, m.after)
		return nil
	}))(b)
	if n := b.Number(`SELECT count(*) FROM audit_log WHERE id > $1 AND actor = 'ann' AND action <> 'login' AND
		(origin ->> 'request' = 'asked-7' AND origin ? 'address' AND origin ?| '{token,session}') IS NOT TRUE`, last); n > 0 {
		b.Errorf("%s: %d rows do not say where it came from", m.op, n)
	}
	if !found {
		b.Errorf("%s is audited as %q; want %s: …%s… → …%s…", m.op, seen, m.action, m.before, m.after)
	}
}

// PROOF: who may do what, 21 and 22.
// The log is exported in the order of its chain, which can be compared with a head that was kept; a read of results is
// in it, with its caller and run.
func TestTheAuditLogIsExportedAndVerified(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	run := b.Start("name=it").Run
	b.Finish(run)
	b.Get("/runs/it/export", apicore.ActorHeader, "ann")
	b.Server.Close() // it writes what it has counted
	testenv.Same(t, b.Number(`SELECT count(*) FROM audit_log WHERE action = 'read' AND actor = 'ann' AND subject = $1::text
		AND run_id IS NULL AND detail ->> 'by' = 'export-run' AND detail ->> 'count' = '1'`, run.String()), 1, "reads")
	testenv.NoError(t, retention.New(b.Store).SealAudit(t.Context()))
	var first, rest inspect.AuditPage
	b.Read("/audit/export?limit=1", &first)
	b.Read(fmt.Sprintf("/audit/export?after=%d", first.Next), &rest)
	for i, e := range append(first.Entries, rest.Entries...) {
		if e.Seal != int64(i)+1 || len(e.Hash) != 64 || i == 0 && e.Action != "start" {
			t.Errorf("entry %d is %+v", i, e)
		}
	}
	for head, found := range map[string]int{"": 0, "1:" + first.Entries[0].Hash: 0, "1:" + strings.Repeat("0", 64): 1,
		"999:" + first.Entries[0].Hash: 1} {
		var report doctor.AuditReport
		b.Read("/audit/verify?head="+head, &report)
		if report.Found != found || report.Rows != int64(1+len(rest.Entries)) {
			t.Errorf("with the head %q: %+v", head, report)
		}
	}
	b.Refused(http.StatusUnprocessableEntity, "give the number and the hash", http.MethodGet,
		api.Prefix+"/audit/verify?head=x", nil)
}

func lastAudit(b *apitest.Bench) (id int64) {
	b.Helper()
	testenv.NoError(b, b.Pool.QueryRow(b.Context(), `SELECT coalesce(max(id), 0) FROM audit_log
		WHERE action NOT IN ('request_refused', 'read')`).Scan(&id))
	return id
}

// operations are those of the description, like "POST /runs", with the parameters of their queries.
func operations(b *apitest.Bench, header ...string) map[string][]string {
	b.Helper()
	_, text := b.Ask(http.MethodGet, api.Prefix+"/openapi.json", nil, header...)
	var described struct {
		Paths map[string]map[string]struct {
			Parameters []struct{ Name, In string }
		}
	}
	testenv.NoError(b, json.Unmarshal(text, &described))
	all := map[string][]string{}
	for path, methods := range described.Paths {
		for method, op := range methods {
			names := []string{}
			for _, p := range op.Parameters {
				if p.In == "query" {
					names = append(names, p.Name)
				}
			}
			all[strings.ToUpper(method)+" "+path] = names
		}
	}
	if len(all) < 50 {
		b.Fatalf("the description has %d operations only", len(all))
	}
	return all
}

// keepsNothing tells operations that change nothing.
func keepsNothing(op string) bool {
	return strings.HasPrefix(op, "GET ") || op == "POST /items/preview" || op == "POST /schedules/preview"
}

// Where people choose what they want to see of the audit log, each action stands.
func TestEveryActionIsOffered(t *testing.T) {
	t.Parallel()
	// The leader's, by retention and by what an identity provider says; requests for acts; and what was refused.
	actions := map[string]bool{"session_end": true, "act_ask": true, "login_failed": true, "request_refused": true,
		"read": true}
	for _, m := range mutations() {
		actions[m.action] = true
	}
	const file = "../dashboard/static/app/pages/audit.js"
	text := testenv.Must(os.ReadFile(file))(t)
	_, rest, found := strings.Cut(string(text), "const actions = [")
	names, _, closed := strings.Cut(rest, "]")
	if !found || !closed {
		t.Fatalf("%s has no list of actions", file)
	}
	offered := map[string]bool{}
	for action := range strings.FieldsFuncSeq(names, func(r rune) bool { return strings.ContainsRune(", \n\"", r) }) {
		offered[action] = true
	}
	for action := range actions {
		if !offered[action] {
			t.Errorf("%s does not offer %q", file, action)
		}
	}
	for action := range offered {
		if !actions[action] {
			t.Errorf("%s offers %q, which no one does", file, action)
		}
	}
}
