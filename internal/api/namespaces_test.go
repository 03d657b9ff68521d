package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/identity"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// expectedScope is where a route must need its role: stated here again, apart from the code. What is not named here
// needs it in the whole installation.
func expectedScope(pattern string) apicore.RoleScope {
	for _, object := range []string{"/runs/{run}", "/plans/{name}", "/schedules/{name}", "/collectors/{name}",
		"/trackers/{id}", "/alerts/{name}"} {
		if _, path, _ := strings.Cut(pattern, api.Prefix); path == object || strings.HasPrefix(path, object+"/") {
			return apicore.OfObject
		}
	}
	switch method, path, _ := strings.Cut(pattern, " "+api.Prefix); {
	case method == http.MethodPost && slices.Contains([]string{"/runs", "/runs/open", "/plans", "/schedules",
		"/schedules/preview", "/collectors", "/trackers", "/alerts"}, path):
		return apicore.Into
	case method == http.MethodGet && slices.Contains([]string{"/runs", "/plans", "/schedules", "/collectors", "/trackers",
		"/alerts", "/dead-letters", "/dead-letters/{id}", "/audit", "/events", "/health", "/info", "/namespaces",
		"/schemas/{schema}"}, path), strings.HasPrefix(path, "/openapi"),
		method == http.MethodPost && slices.Contains([]string{"/items/preview", "/runs/pause", "/runs/resume", "/runs/cancel",
			"/runs/approve"}, path), path == "/tokens", strings.HasPrefix(path, "/tokens/"):
		return apicore.Anywhere
	default:
		return apicore.Installation
	}
}

const (
	ourTracker   = "0198c5f2-7a3e-7c11-9d0e-00000000000a"
	theirTracker = "0198c5f2-7a3e-7c11-9d0e-00000000000b"
)

// shared sets two namespaces up that have one object of each kind, and returns a token that is granted roles.
func shared(b *apitest.Bench) (granted func(name string, wide access.Role, grants map[string]string) []string) {
	b.Helper()
	for _, of := range [][2]string{{"team-a", "ours"}, {"team-b", "theirs"}} { // the last run is theirs
		namespace, name := of[0], of[1]
		testenv.NoError(b, identity.New(b.Store).SetNamespace(b.Context(), namespace, identity.Quotas{}, "the test"))
		in := "&namespace=" + namespace
		run := b.Start("name=" + name + in).Run
		testenv.Must(deadletter.New(b.Store).Add(b.Context(), deadletter.DeadLetter{MsgID: name, Endpoint: "echo",
			Cause: "no_reply", Message: name, Run: &run, Body: []byte("{}")}))(b)
		b.Apply("steps: [{endpoint: echo}]", "name="+name+in)
		for path, text := range map[string]string{
			"/schedules?name=" + name + in:  "cron: '0 0 1 1 *'\nzone: UTC\nendpoint: echo\nitems: {url: 'https://localhost'}",
			"/collectors?name=" + name + in: "endpoint: echo\nmin_size: 5\nmax_size: 10\nmax_age: 10m",
			"/alerts?name=" + name:          strings.Replace(alertOf(namespace), "warning", "info", 1),
			"/trackers?namespace=" + namespace: `{"owner":"` + name + `","id":"` +
				map[string]string{"ours": ourTracker, "theirs": theirTracker}[name] + `"}`,
		} {
			if code, answer := b.Ask(http.MethodPost, api.Prefix+path, strings.NewReader(text), "Content-Type",
				apitest.ContentTypeOf(text)); code > http.StatusCreated {
				b.Fatalf("POST %s: %d %s", path, code, answer)
			}
		}
	}
	return func(name string, wide access.Role, grants map[string]string) []string {
		secret := access.NewSecret()
		testenv.Must(identity.New(b.Store).CreateToken(b.Context(), identity.NewToken{Name: name, Role: string(wide),
			Hash: access.HashOf(secret), Grants: grants}, "the test"))(b)
		return []string{"Authorization", "Bearer " + secret}
	}
}

func at(pattern, name, tracker string) (method, path string) {
	return concrete(strings.NewReplacer("{run}", name, "/plans/{name}", "/plans/"+name, "/schedules/{name}",
		"/schedules/"+name,
		"/collectors/{name}", "/collectors/"+name, "/trackers/{id}", "/trackers/"+tracker,
		"/alerts/{name}", "/alerts/"+name).Replace(pattern))
}

// PROOF: who may do what, 25.
// Route × role × namespace: what one is granted in a namespace holds there; what others own does not exist.
func TestNamespacesAreApart(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	granted := shared(b)
	b.Apply("steps: [{endpoint: echo}]", "name=v1&namespace=team-a") // what a mistaken look at an escaped path would find
	b.Locked()
	watcher := granted("watcher", access.Watcher, map[string]string{"team-b": "viewer"})
	for path, want := range map[string]int{"theirs/items": 200, "ours/items": 403, "last/items": 200} {
		code, text := b.Ask(http.MethodGet, api.Prefix+"/runs/"+path, nil, watcher...)
		testenv.Same(t, code, want, "%s as a watcher of all and viewer of team-b: %s", path, text)
	}
	for _, role := range access.Roles() {
		only := granted("only "+string(role), access.None, map[string]string{"team-a": string(role)})
		seer := granted("seer "+string(role), access.Viewer, map[string]string{"team-a": string(role)})
		for _, route := range b.Server.Routes() {
			if route.Role == access.None {
				continue
			}
			ask := func(who []string, name, tracker string) int {
				method, path := at(route.Pattern, name, tracker)
				if encoded := strings.Replace(path, "/api/", "/%61pi/", 1); slices.Equal(who, only) && encoded != path &&
					!strings.Contains(path, "{") {
					testenv.Same(t, b.Send(method, encoded, "", who...).StatusCode, http.StatusNotFound, "%s %s", method, encoded)
				}
				if method != http.MethodGet || strings.HasSuffix(path, "/events") {
					return b.Send(method, path, "", who...).StatusCode
				}
				code, text := b.Ask(method, path, nil, who...)
				if name == "ours" && strings.Contains(string(text), "theirs") && slices.Equal(who, only) {
					t.Errorf("%s reports another namespace: %s", route.Pattern, text)
				}
				return code
			}
			in := func(code int) bool { return code != http.StatusUnauthorized && code != http.StatusForbidden }
			here := role.Allows(route.Role) && route.Scope != apicore.Installation
			testenv.Same(t, in(ask(only, "ours", ourTracker)), here, "%s as %s of team-a; let in", route.Pattern, role)
			testenv.Same(t, in(ask(seer, "ours", ourTracker)), here || access.Viewer.Allows(route.Role),
				"%s as %s of team-a and viewer of all; let in", route.Pattern, role)
			if route.Scope != apicore.OfObject {
				continue
			}
			testenv.Same(t, ask(only, "theirs", theirTracker), http.StatusNotFound, "%s of team-b as %s of team-a",
				route.Pattern, role)
			if got := ask(seer, "theirs", theirTracker); access.Viewer.Allows(route.Role) != in(got) {
				t.Errorf("%s of team-b as a viewer of all: %d", route.Pattern, got)
			}
		}
	}
}

func alertOf(namespaces string) string {
	if namespaces != "" {
		namespaces = "\nnamespaces: [" + namespaces + "]"
	}
	return "when: {health: warning}\nto: {email: {to: [a@bank.example]}}" + namespaces
}

// PROOF: who may do what, 25.
// What is made belongs to a namespace, and refers to what is there.
func TestWorkStaysInItsNamespace(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	granted := shared(b)
	b.Locked()
	who := granted("op", access.None, map[string]string{"team-a": "operator"})
	both := granted("both", access.None, map[string]string{"team-a": "operator", "team-b": "operator"})
	admin := granted("root", access.Admin, nil)
	lead := granted("lead", access.Viewer, map[string]string{"team-a": "admin", "team-b": "operator"})
	granted("peer", access.None, map[string]string{"team-a": "admin"})
	granted("spare", access.Viewer, nil)
	items, start := apitest.Three, api.Prefix+"/runs?endpoint=echo&idempotency_key=k"
	for _, c := range []struct {
		who              []string
		method, path     string
		body             string
		status           int
		text, namespaced string
	}{
		{who, "POST", start, items, 201, "", "team-a"},
		{who, "POST", start, items, 200, `"existing":true`, ""},
		{both, "POST", start + "&namespace=team-b", items, 201, "", "team-b"}, // the key is another one there
		{both, "POST", start, items, 422, "use one of team-a, team-b", ""},
		{who, "POST", start + "&namespace=team-b", items, 403, "token create --grant team-b=operator", ""},
		{who, "POST", start + "&namespace=team-x", items, 403, "in namespace team-x", ""},
		{admin, "GET", api.Prefix + "/runs?namespace=", "", 400, "namespace: want one name", ""},
		{admin, "GET", api.Prefix + "/runs?namespace=team-a&namespace=team-b", "", 400, "namespace: want one name", ""},
		{append(slices.Clone(both), apicore.NamespaceHeader, "team-a"), "GET", api.Prefix + "/runs?namespace=team-b", "",
			400, "given once", ""},
		{who, "GET", api.Prefix + "/runs/urn:uuid:" + ourTracker, "", 404, "no run has", ""},
		{admin, "POST", start + "&namespace=team-x", items, 422, "is no namespace", ""},
		{admin, "POST", start, items, 201, "", "default"},
		{who, "POST", api.Prefix + "/runs?plan_ref=theirs", items, 404, `plan \"theirs\": not found`, ""},
		{admin, "POST", api.Prefix + "/runs?plan_ref=ours", items, 404, `plan \"ours\": not found`, ""},
		{who, "POST", api.Prefix + "/runs?from_run=theirs", "", 404, "no run has ID or name", ""},
		{admin, "POST", api.Prefix + "/runs?from_run=ours", "", 422, "add --namespace team-a", ""},
		{who, "POST", api.Prefix + "/plans?name=theirs", "steps: [{endpoint: echo}]", 409, "taken in another namespace", ""},
		{admin, "POST", api.Prefix + "/plans?name=ours", "steps: [{endpoint: echo}]", 409, "add --namespace team-a", ""},
		{who, "GET", api.Prefix + "/runs/ours/comparison?against=theirs", "", 404, "no run has ID or name", ""},
		{who, "GET", api.Prefix + "/runs/ours/forecast?change=without%3Dtheirs", "", 422, "whole installation", ""},
		{who, "POST", api.Prefix + "/runs/pause", `{"all":true}`, 200, `"action":"pause"`, ""},
		{admin, "PUT", api.Prefix + "/namespaces/team-a", `{"max_runs":2}`, 200, `"max_runs":2`, ""},
		{who, "POST", api.Prefix + "/runs?endpoint=echo", items, 409, "namespace team-a may have 2 unfinished runs", ""},
		{who, "POST", api.Prefix + "/runs/ours/cancel", "{}", 200, "", ""},
		{who, "POST", api.Prefix + "/runs?endpoint=echo", items, 201, "", "team-a"},
		{who, "POST", api.Prefix + "/runs/ours/resume", "{}", 409,
			"may have 2 unfinished runs; wait until one ends, or raise", ""},
		{admin, "PUT", api.Prefix + "/namespaces/team-a", `{"max_items":8}`, 200, `"max_items":8`, ""},
		{who, "POST", api.Prefix + "/runs?endpoint=echo", items, 409, "this would make 9", ""},
		{admin, "PUT", api.Prefix + "/namespaces/team-a", `{"max_bytes":9,"max_in_flight":1}`, 200,
			`"max_in_flight":1,"max_bytes":9,"runs":2,"items":6,"in_flight":0,"bytes":`, ""},
		{who, "POST", api.Prefix + "/runs?endpoint=echo", items, 409, "may store 9 bytes in its runs, and", ""},
		{admin, "PUT", api.Prefix + "/namespaces/team-a", `{"max_runs":99}`, 200, "", ""},
		{admin, "POST", api.Prefix + "/dead-letters/drop?namespace=team-a", `{"all":true}`, 422, "all namespaces", ""},
		{admin, "POST", api.Prefix + "/endpoints/bank/settings", `{"namespaces":["team-x"]}`, 422, "is no namespace", ""},
		{admin, "POST", api.Prefix + "/endpoints/bank/settings", `{"namespaces":["team-b"]}`, 200, `["team-b"]`, ""},
		{who, "POST", api.Prefix + "/runs?endpoint=bank", items, 403, "endpoint bank is not for namespace team-a", ""},
		{who, "POST", api.Prefix + "/collectors?name=c", "endpoint: bank\nmin_size: 5\nmax_age: 9m", 403,
			"not for namespace team-a", ""},
		{who, "POST", api.Prefix + "/plans?name=web", `steps: [{name: w, http: {url: "https://BANK.:443/{key}"}}]`, 200, "",
			""},
		{admin, "POST", api.Prefix + "/endpoints/http:Bank/settings", `{"namespaces":["team-b"]}`, 200, `"http:bank"`, ""},
		{admin, "GET", api.Prefix + "/endpoints/http:BANK.:443", "", 200, `"name":"http:bank"`, ""},
		{who, "POST", api.Prefix + "/runs?plan_ref=web", items, 403, "http:bank is not for namespace team-a", ""},
		{both, "POST", api.Prefix + "/runs?endpoint=bank&namespace=team-b", items, 201, "", "team-b"},
		{admin, "POST", api.Prefix + "/endpoints/bank/settings", `{"namespaces":[]}`, 200, `"rate":0`, ""},
		{who, "POST", api.Prefix + "/runs?endpoint=bank", items, 201, "", "team-a"},
		{lead, "POST", api.Prefix + "/tokens", `{"name":"x","role":"none","grants":{"team-a":"admin"}}`, 200, `"secret"`, ""},
		{lead, "POST", api.Prefix + "/tokens", `{"name":"y","role":"viewer"}`, 403, "--grant team-a=", ""},
		{lead, "POST", api.Prefix + "/tokens", `{"name":"y","role":"none","grants":{"team-a":"viewer","team-b":"viewer"}}`,
			403, "want only namespace team-a, for", ""},
		{lead, "POST", api.Prefix + "/tokens/x/rotate", "{}", 200, `"secret"`, ""},
		{lead, "POST", api.Prefix + "/tokens/peer/revoke", "{}", 200, `"revoked"`, ""},
		{lead, "POST", api.Prefix + "/tokens/lead/rotate", "{}", 404, "no token has", ""}, // it has rights elsewhere
		{lead, "POST", api.Prefix + "/tokens/root/revoke", "{}", 404, "no token has", ""},
		{both, "GET", api.Prefix + "/tokens", "", 403, "needs the role admin", ""},
		{admin, "POST", api.Prefix + "/tokens?namespace=team-b", `{"name":"y","role":"admin"}`, 403, "or leave out", ""},
		{admin, "POST", api.Prefix + "/tokens/spare/revoke?namespace=team-b", "{}", 200, `"revoked"`, ""},
		{lead, "POST", api.Prefix + "/tokens", `{"name":"Spare","role":"none","grants":{"team-a":"viewer"}}`, 409,
			"is that of another token", ""},
		{who, "POST", api.Prefix + "/alerts?name=ours", alertOf("team-a"), 200, `"version":2`, ""},
		{who, "POST", api.Prefix + "/alerts?name=theirs", alertOf("team-a"), 422, "taken, maybe by a deleted", ""},
		{who, "POST", api.Prefix + "/alerts?name=new", alertOf("team-b"), 403, "such as [team-a]", ""},
		{who, "POST", api.Prefix + "/alerts?name=new", alertOf("team-a,team-b"), 403, "such as [team-a]", ""},
		{who, "POST", api.Prefix + "/alerts?name=new", alertOf(""), 403, "such as [team-a]", ""},
		{admin, "POST", api.Prefix + "/alerts?name=all", alertOf(""), 200, `"version":1`, ""},
		{admin, "POST", api.Prefix + "/alerts?name=new", alertOf("team-a,team-x"), 422, "is no namespace", ""},
		{who, "POST", api.Prefix + "/alerts?name=new", "when: {health: info}\nto: {command: no}\nnamespaces: [team-a]", 403,
			"to.command: only an operator of the whole", ""},
		{admin, "POST", api.Prefix + "/alerts/all/test", "", 202, `"message"`, ""},
		{who, "DELETE", api.Prefix + "/alerts/all", "", 404, "not found", ""},
		{lead, "GET", api.Prefix + "/alerts/all", "", 200, "", ""},
		{lead, "DELETE", api.Prefix + "/alerts/all", "", 403, "needs the role operator", ""},
		{admin, "POST", api.Prefix + "/alerts?name=all", alertOf("team-a"), 200, `"version":2`, ""},
		{who, "GET", api.Prefix + "/alerts/all/messages", "", 200, `"messages":[]`, ""},
		{who, "POST", api.Prefix + "/alerts/ours/test", "", 202, `"message"`, ""},
		{who, "DELETE", api.Prefix + "/alerts/ours", "", 200, "", ""},
		{both, "POST", api.Prefix + "/alerts?name=ours&namespace=team-b", alertOf("team-b"), 422, "by a deleted", ""},
		{admin, "POST", api.Prefix + "/alerts?name=ours", alertOf("team-b"), 200, `"version":3`, ""},
		{admin, "DELETE", api.Prefix + "/namespaces/team-b", "", 409, "still has runs", ""},
		{admin, "DELETE", api.Prefix + "/namespaces/%00", "", 422, "invalid name", ""},
		{admin, "POST", api.Prefix + "/tokens", `{"name":"x","role":"none","grants":{"team-x":"viewer"}}`, 422,
			"there is no namespace", ""},
	} {
		kind := "application/json"
		if c.body == items {
			kind = "text/csv"
		} else if strings.Contains(c.path, "?name=") {
			kind = "application/yaml"
		}
		code, text := b.Ask(c.method, c.path, strings.NewReader(c.body), append(slices.Clone(c.who), "Content-Type", kind)...)
		if code != c.status || !strings.Contains(string(text), c.text) {
			t.Errorf("%s %s: %d %s; want %d %s", c.method, c.path, code, text, c.status, c.text)
		}
		var owner string
		if c.namespaced != "" {
			testenv.NoError(t, b.Pool.QueryRow(t.Context(),
				`SELECT namespace FROM batchrun ORDER BY id DESC LIMIT 1`).Scan(&owner))
			testenv.Same(t, owner, c.namespaced, "%s makes a run in", c.path)
		}
	}
	_, theirs := b.Ask(http.MethodGet, api.Prefix+"/tokens", nil, lead...)
	var list api.TokenList
	testenv.NoError(t, json.Unmarshal(theirs, &list))
	for _, token := range list.Tokens {
		testenv.Same(t, slices.Contains([]string{"x", "peer", "op"}, token.Name), true, "lead sees token %s", token.Name)
	}
	testenv.Same(t, len(list.Tokens), 4, "tokens of team-a")
	testenv.Same(t, b.Number(`SELECT count(*) FROM audit_log WHERE actor = 'lead' AND action ~ '^token_'`), 3,
		"rows of the audit log about tokens")
	testenv.NoError(t, identity.New(b.Store).SetNamespace(t.Context(), "team-c", identity.Quotas{}, "the test"))
	granted("late", access.None, map[string]string{"team-c": "viewer"})
	b.Refused(http.StatusConflict, "still has tokens", http.MethodDelete, api.Prefix+"/namespaces/team-c", nil, admin...)
	b.Exec(`UPDATE api_token SET expires_at = tranche_now() WHERE name = 'late'`)
	b.Exec(`INSERT INTO web_session (hash, user_name, role, grants, expires_at, subject) VALUES
		(sha256(''), 'a person', 'none', '{"team-c":"viewer"}', tranche_now() + interval '1 hour', 's')`)
	testenv.NoError(t, identity.New(b.Store).DeleteNamespace(t.Context(), "team-c", "the test"))
	testenv.Same(t, b.Number(`SELECT count(*) FROM web_session`), 0, "sessions with grants in a deleted namespace")
	var all sync.WaitGroup
	for range 20 { // small starts share transactions
		all.Go(func() {
			b.Send("POST", api.Prefix+"/runs?endpoint=echo&name=a", items,
				append(slices.Clone(who), "Content-Type", "text/csv")...)
		})
		all.Go(func() {
			b.Send("POST", api.Prefix+"/runs?endpoint=echo&name=b&namespace=team-b", items,
				append(slices.Clone(both), "Content-Type", "text/csv")...)
		})
	}
	all.Wait()
	testenv.Same(t, b.Number(`SELECT count(*) FROM batchrun WHERE 'team-' || name = namespace`), 40,
		"runs where they were started")
	testenv.Same(t, b.Number(`SELECT count(*) FROM batchrun WHERE hold IS NOT NULL AND namespace <> 'team-a'`), 0,
		"runs paused elsewhere")
	if runs := b.Follow("/events?topic=runs", who...).Next("runs"); strings.Contains(runs, "theirs") ||
		!strings.Contains(runs, "ours") {
		t.Errorf("the stream of runs reports %s", runs)
	}
	watcher := granted("watcher", access.None, map[string]string{"team-a": "watcher"})
	b.Exec(`UPDATE batchrun SET params = '{"secret":"canary"}'`)
	b.Exec(`INSERT INTO node_session (id, host, pid, version, started_at, expires_at)
		SELECT gen_random_uuid(), 'canary', 1, 'canary-2', created_at, created_at FROM batchrun WHERE name = 'ours'`)
	for path, as := range map[string][]string{"ours": watcher, "ours/history": who} {
		if _, text := b.Ask(http.MethodGet, api.Prefix+"/runs/"+path, nil, as...); strings.Contains(string(text),
			`"canary"`) ||
			strings.Contains(string(text), "canary-2") != (path == "ours/history") {
			t.Errorf("%s tells: %s", path, text)
		}
	}
	_, text := b.Ask(http.MethodGet, api.Prefix+"/dead-letters", nil, admin...)
	page := deadletter.DeadLetterPage{}
	testenv.NoError(t, json.Unmarshal(text, &page))
	for _, letter := range page.Letters {
		code, text := b.Ask(http.MethodGet, api.Prefix+"/dead-letters/"+letter.ID.String(), nil, who...)
		testenv.Same(t, code, map[string]int{"ours": 200, "theirs": 404}[letter.Message], "the letter of %s: %s",
			letter.Message, text)
	}
	_, text = b.Ask(http.MethodGet, api.Prefix+"/dead-letters", nil, who...)
	if all := string(text); strings.Contains(all, "theirs") || !strings.Contains(all, "ours") {
		t.Errorf("the dead letters are %s", all)
	}
	var told inspect.AuditPage
	_, text = b.Ask(http.MethodGet, api.Prefix+"/audit?limit=500", nil, who...)
	testenv.NoError(t, json.Unmarshal(text, &told))
	runs := []workqueue.RunID{}
	for _, entry := range told.Entries {
		runs = append(runs, *entry.Run) // none without a run
	}
	testenv.Same(t, len(runs) > 0, true, "rows of the audit log")
	testenv.Same(t, b.Number(`SELECT count(*) FROM batchrun WHERE id = ANY ($1) AND namespace <> 'team-a'`, runs), 0,
		"runs of other namespaces in the audit log")
	b.Exec(`INSERT INTO audit_log (actor, action) SELECT 'x', 'y' FROM generate_series(1, $1 + 1)`, inspect.MaxSearched)
	b.Exec(`INSERT INTO dead_letter (id, msg_id, endpoint, cause) SELECT format('fffffff1-0000-7000-8000-%s',
		lpad(n::text, 12, '0'))::uuid, 'm' || n, 'e', 'c' FROM generate_series(1, $1 + 1) n`, deadletter.MaxSearched)
	for path, from := range map[string]string{"/audit": "before", "/dead-letters": "after"} {
		_, text := b.Ask(http.MethodGet, api.Prefix+path, nil, who...)
		var page struct{ Next any }
		testenv.NoError(t, json.Unmarshal(text, &page))
		_, older := b.Ask(http.MethodGet, fmt.Sprintf("%s?%s=%.0f", api.Prefix+path, from, page.Next), nil, who...)
		if id, is := page.Next.(string); is {
			_, older = b.Ask(http.MethodGet, api.Prefix+path+"?after="+id, nil, who...)
		}
		if strings.Contains(string(text), `"id"`) || !strings.Contains(string(older), `"id"`) {
			t.Errorf("%s: %s, and older %s", path, text, older)
		}
	}
	schedule := workqueue.InScope(t.Context(), workqueue.Scope{Into: "team-b"})
	testenv.Same(t, workqueue.Namespaces(workqueue.Within(schedule))[0], "team-b", "a scheduled start is within")
}
