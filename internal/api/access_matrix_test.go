package api_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// expected is the role that a route must need: stated here again, apart from the code.
func expected(pattern string) access.Role {
	method, path, _ := strings.Cut(pattern, " ")
	path = strings.TrimPrefix(path, api.Prefix)
	switch {
	case slices.Contains([]string{"/runs", "/runs/{run}", "/runs/{run}/planes", "/runs/{run}/timeline", "/events", "/info",
		"/namespaces"}, path) && method == http.MethodGet, strings.Contains(path, "openapi"), path == "/schemas/{schema}":
		return access.Watcher
	case pattern == "/" || path == "/healthz" || path == "/readyz" || path == "/session",
		pattern == "GET "+apicore.SchemaPath:
		return access.None
	case path == "/tokens" || strings.HasPrefix(path, "/tokens/") || strings.HasPrefix(path, "/sessions") ||
		strings.HasPrefix(path, "/acts"), pattern == "DELETE "+api.Prefix+"/plans/{name}", path == "/namespaces/{name}":
		return access.Admin
	case method == http.MethodGet:
		return access.Viewer
	case strings.HasPrefix(path,
		"/retention/"), path == "/runs/{run}/delete", path == "/erase", // what no one can bring back
		path == "/streams/settings": // it is about all runs, and the disks of NATS
		return access.Admin
	default:
		return access.Operator
	}
}

// PROOF: who may do what, 2, 3, 5 and 25.
// Who may do what: every way into the server with the token of each role and without one, and one way of each role and
// method with every kind of credential. A new route is in it by itself, and fails it until it says which role it needs.
func TestEveryRouteAsksForItsRole(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("name=it")
	routes := routesOf(b)
	kinds := credentialsOf(b.Locked())
	b.Locked() // one that remembers no one
	allowed, tried := 0, map[string]bool{}
	for _, route := range routes {
		testenv.Same(t, route.Role, expected(route.Pattern), "%s needs the role", route.Pattern)
		testenv.Same(t, route.Scope, expectedScope(route.Pattern), "%s needs it where, namely in", route.Pattern)
		if strings.HasSuffix(route.Pattern, "/session") {
			continue // open to all; logging out would end the sessions of the others
		}
		method, _, _ := strings.Cut(route.Pattern, " ")
		way := method + string(route.Role)
		first := !tried[way]
		tried[way] = true
		for name, kind := range kinds {
			if first || kind.everywhere {
				allowed += knock(b, route, name, kind)
			}
		}
	}
	if len(routes) < 50 || allowed < 200 {
		t.Errorf("%d routes let %d requests in; the matrix looks in the wrong place", len(routes), allowed)
	}
}

// A refusal says what is missing, and where to get it; never more.
func TestRefusalsSayWhatIsMissing(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t).Locked()
	viewer := []string{"Authorization", "Bearer " + b.Token("vic", access.Viewer, 0).Secret}
	b.Refused(http.StatusUnauthorized, "tranche token create", http.MethodGet, api.Prefix+"/runs", nil)
	b.Refused(http.StatusUnauthorized, "needs a login", http.MethodGet, api.Prefix+"/no-such-thing", nil)
	b.Refused(http.StatusForbidden, "needs the role operator, and vic has the role viewer", http.MethodPost,
		api.Prefix+"/runs/pause", strings.NewReader(`{"all":true}`), viewer...)
	b.Refused(http.StatusForbidden, "needs the role admin", http.MethodGet, api.Prefix+"/tokens", nil, viewer...)
	b.Refused(http.StatusNotFound, "there is nothing at", http.MethodGet, api.Prefix+"/no-such-thing", nil, viewer...)
	expired := []string{"Authorization", "Bearer " + b.Token("old", access.Admin, -1).Secret}
	b.Refused(http.StatusUnauthorized, "the token has expired", http.MethodGet, api.Prefix+"/runs", nil, expired...)
	if code, _ := b.Ask(http.MethodGet, api.Prefix+"/runs", nil, viewer...); code != http.StatusOK {
		t.Errorf("a viewer is answered %d", code)
	}
}

// PROOF: who may do what, 5.
// What a page of another site may make a browser do: follow a link, and nothing else.
func TestOtherSitesMayLinkHere(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("name=it")
	path := api.Prefix + "/runs/it/export"
	for name, c := range map[string]struct {
		site, mode, dest string
		want             int
	}{
		"a link":       {"cross-site", "navigate", "document", 200},
		"a frame":      {"cross-site", "navigate", "iframe", 403},
		"an image":     {"cross-site", "no-cors", "image", 403},
		"a script":     {"same-site", "cors", "empty", 403},
		"our own page": {"same-origin", "cors", "empty", 200},
	} {
		code, _ := b.Ask(http.MethodGet, path, nil, "Sec-Fetch-Site", c.site, "Sec-Fetch-Mode", c.mode, "Sec-Fetch-Dest",
			c.dest)
		testenv.Same(t, code, c.want, "%s is answered", name)
	}
}

// PROOF: who may do what, 4, 7 and 16.
// The secret of a token is in the answer that makes it, and nowhere else: not in logs, not in the database, not in what
// repeats a request that went wrong.
func TestSecretsStayInTheirPlace(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t).Locked()
	admin := []string{"Authorization", "Bearer " + b.Token("ann", access.Admin, 0).Secret,
		"Content-Type", "application/json", "Idempotency-Key", "again"}
	code, text := b.Ask(http.MethodPost, api.Prefix+"/tokens",
		strings.NewReader(`{"name":"canary","role":"operator"}`), admin...)
	var made struct {
		identity.TokenView
		Secret string `json:"secret"`
	}
	if err := json.Unmarshal(text, &made); err != nil || code != http.StatusOK || !access.WellFormed(made.Secret) {
		t.Fatalf("POST /tokens: %d %s, %v", code, text, err)
	}
	if matched := regexp.MustCompile(`^tr_[a-z2-7]{39}$`).MatchString(made.Secret); !matched {
		t.Error("the secret does not look like one")
	}
	canary := made.Secret[3:23]
	bearer := []string{"Authorization", "Bearer " + made.Secret, "Content-Type", "application/json"}
	cookie := b.LogIn(made.Secret)
	for _, c := range []struct{ method, path, body string }{
		{http.MethodPost, "/session", `{"tokn":"` + made.Secret + `"}`},
		{http.MethodPost, "/session", `{"token":["` + made.Secret + `"]}`},
		{http.MethodPost, "/session", `"` + made.Secret + `"`},
		{http.MethodPost, "/session", made.Secret},
		{http.MethodPost, "/session", `{"token":"` + made.Secret[:30] + `"}`},
		{http.MethodGet, "/runs?token=" + made.Secret, ""},
		{http.MethodGet, "/runs?access_token=" + made.Secret, ""},
		{http.MethodGet, "/runs/" + made.Secret, ""},
		{http.MethodGet, "/" + made.Secret, ""},
		{http.MethodPost, "/runs/" + made.Secret + "/pause", "{}"},
		{http.MethodPost, "/runs?endpoint=echo&name=x", "broken\x00"},
		{http.MethodGet, "/tokens", ""},
		{http.MethodGet, "/audit", ""},
		{http.MethodGet, "/session", ""},
		{http.MethodGet, "/info", ""},
	} {
		for _, who := range [][]string{bearer, cookie.Headers(), admin} {
			_, text := b.Ask(c.method, api.Prefix+c.path, strings.NewReader(c.body), who...)
			if strings.Contains(string(text), canary) || strings.Contains(string(text), cookie.Cookie.Value) {
				t.Errorf("%s %s repeats a secret: %s", c.method, c.path[:min(20, len(c.path))], text)
			}
		}
	}
	for _, entry := range b.Log.All() {
		line, err := json.Marshal(entry.ContextMap())
		if err != nil || strings.Contains(entry.Message+string(line), canary) ||
			strings.Contains(string(line), cookie.Cookie.Value) {
			t.Errorf("a secret is in the log: %s %s, %v", entry.Message, line, err)
		}
	}
	for _, table := range []string{"audit_log", "api_token", "web_session", "api_request", "batchrun"} {
		var found int
		if err := b.Pool.QueryRow(t.Context(), `SELECT count(*) FROM `+table+` x WHERE x::text LIKE '%' || $1 || '%' OR
			x::text LIKE '%' || encode($1::bytea, 'hex') || '%' OR x::text LIKE '%' || $2 || '%'`, canary, cookie.Cookie.Value).
			Scan(&found); err != nil || found > 0 {
			t.Errorf("table %s has %d rows with a secret, %v", table, found, err)
		}
	}
}

// credential is a way to say who one is, and the role that comes of it; None where it must come to nothing.
type credential struct {
	headers []string
	role    access.Role
	reads   access.Role // what it may do when nothing is changed, if that is another role

	everywhere bool // it is tried on every route
}

func credentialsOf(b *apitest.LockedBench) map[string]credential {
	b.Helper()
	bearer := func(secret string) []string { return []string{"Authorization", "Bearer " + secret} }
	kinds := map[string]credential{
		"nobody":        {role: access.None, everywhere: true},
		"expired":       {headers: bearer(b.Token("old", access.Admin, -1).Secret), role: access.None},
		"unknown":       {headers: bearer(access.NewSecret()), role: access.None},
		"garbage":       {headers: bearer("tr_garbage' OR 1=1 --"), role: access.None},
		"empty":         {headers: []string{"Authorization", "Bearer "}, role: access.None},
		"basic":         {headers: []string{"Authorization", "Basic YWRtaW46YWRtaW4="}, role: access.None},
		"false cookie":  {headers: []string{"Cookie", "tranche_session=" + access.NewSecret()}, role: access.None},
		"actor's claim": {headers: []string{apicore.ActorHeader, "ann"}, role: access.None},
	}
	gone := b.Token("gone", access.Admin, 0)
	wasThere := b.LogIn(gone.Secret).Headers()
	testenv.Must(identity.New(b.Store).RevokeToken(b.Context(), gone.ID.String(), "the test"))(b.T)
	kinds["revoked"] = credential{headers: bearer(gone.Secret), role: access.None}
	kinds["cookie of a revoked token"] = credential{headers: append(wasThere, "Sec-Fetch-Site", "same-origin"),
		role: access.None}
	for _, role := range access.Roles() {
		secret := b.Token("the "+string(role), role, time.Hour).Secret
		cookie := b.LogIn(secret).Headers()
		kinds[string(role)] = credential{headers: bearer(secret), role: role, everywhere: true}
		kinds["cookie of "+string(role)] = credential{
			headers: slices.Concat(cookie, []string{"Sec-Fetch-Site", "same-origin"}), role: role}
		kinds["cookie of "+string(role)+", old browser"] = credential{
			headers: slices.Concat(cookie, []string{"Origin", ownOrigin}), role: role}
		kinds["cookie of "+string(role)+", no browser"] = credential{headers: cookie, role: access.None, reads: role}
		kinds["cookie of "+string(role)+", foreign origin"] = credential{
			headers: slices.Concat(cookie, []string{"Origin", "https://evil.example"}), role: access.None}
		kinds["cookie of "+string(role)+", foreign page"] = credential{
			headers: slices.Concat(cookie, []string{"Sec-Fetch-Site", "cross-site"}), role: access.None,
			everywhere: role == access.Admin}
		kinds["cookie of "+string(role)+", other port"] = credential{
			headers: slices.Concat(cookie, []string{"Sec-Fetch-Site", "same-site"}), role: access.None}
	}
	return kinds
}

// knock tries one field of the matrix, and returns 1 when it was let in.
func knock(b *apitest.Bench, route apicore.Route, name string, kind credential) int {
	b.Helper()
	method, path := concrete(route.Pattern)
	changes := method != http.MethodGet
	role := kind.role
	if !changes && kind.reads != "" {
		role = kind.reads
	}
	headers := slices.Clone(kind.headers)
	if i := slices.Index(headers, ownOrigin); i >= 0 {
		headers[i] = b.URL
	}
	answer := b.Send(method, path, "", headers...)
	in := answer.StatusCode != http.StatusUnauthorized && answer.StatusCode != http.StatusForbidden
	testenv.Same(b, in, role.Allows(route.Role), "%s with %s: %d; let in", route.Pattern, name, answer.StatusCode)
	challenge := answer.Header.Get("WWW-Authenticate")
	if answer.StatusCode == http.StatusUnauthorized && !strings.HasPrefix(challenge, "Bearer") {
		b.Errorf("%s with %s: 401 without a challenge", route.Pattern, name)
	}
	if answer.StatusCode >= http.StatusInternalServerError {
		b.Errorf("%s with %s: %d", route.Pattern, name, answer.StatusCode)
	}
	if in {
		return 1
	}
	return 0
}

// routesOf lists all routes of the server, and holds them against its description.
func routesOf(b *apitest.Bench) []apicore.Route {
	b.Helper()
	routes := b.Server.Routes()
	patterns := map[string]bool{}
	for _, r := range routes {
		patterns[r.Pattern] = true
	}
	_, text := b.Ask(http.MethodGet, api.Prefix+"/openapi.json", nil)
	var described struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	testenv.NoError(b, json.Unmarshal(text, &described))
	for path, methods := range described.Paths {
		for method := range maps.Keys(methods) {
			if pattern := strings.ToUpper(method) + " " + api.Prefix + path; !patterns[pattern] {
				b.Errorf("%s is described and no route", pattern)
			}
		}
	}
	return routes
}

// concrete puts something into the path of a route.
func concrete(pattern string) (method, path string) {
	method, path, ok := strings.Cut(pattern, " ")
	if !ok {
		method, path = http.MethodGet, pattern
	}
	path = strings.NewReplacer("{run}", "it", "{key}", "1", "{version}", "1", "{id}", "9999", "{name}", "nothing",
		"{schema}", "Run.json").Replace(path)
	return method, path
}

// ownOrigin stands for the origin of the server, whose port changes.
const ownOrigin = "own origin"
