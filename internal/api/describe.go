package api

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/api/runs"
)

const introduction = `Everything that Tranche does, for programs: the command line and the dashboard use this API only.

Errors are application/problem+json. Lists are paged: pass next to get the next page. docs/api.md has what is not
here.`

// Names of the security schemes.
const (
	schemeBearer  = "bearer"
	schemeSession = "session"
)

func describe(doc *huma.OpenAPI) *huma.OpenAPI {
	doc.Info.Description = introduction
	doc.Info.License = &huma.License{Name: "Apache 2.0", Identifier: "Apache-2.0"}
	doc.Tags = tags()
	doc.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		schemeBearer: {Type: "http", Scheme: "bearer", Description: "An API token, for programs. With --auth off none is " +
			"needed, and a token is ignored."},
		schemeSession: {Type: "apiKey", In: "cookie", Name: "tranche_session", Description: "The session of someone who " +
			"has logged in to the dashboard."},
	}
	doc.Components.Responses = describedRefusals(doc.Components.Schemas)
	for path, item := range doc.Paths {
		for _, op := range apicore.DescribedOf(item) {
			op.Path = path
			describeOperation(op)
		}
	}
	describeExamples(doc)
	return doc
}

func describeOperation(op *huma.Operation) {
	op.Tags = []string{tagOf(op)}
	route := apicore.RouteOf(op)
	op.Security = []map[string][]string{{schemeBearer: {}}, {schemeSession: {}}}
	if route.Role == access.None {
		op.Security = []map[string][]string{} // explicitly nothing
	}
	if op.Extensions == nil {
		op.Extensions = map[string]any{}
	}
	op.Extensions["x-tranche-role"] = string(route.Role)
	delete(op.Responses, "default")
	op.RequestBody = cmp.Or(route.Streamed(), op.RequestBody)
	if op.RequestBody != nil && op.RequestBody.Description == "" && op.RequestBody.Content["application/json"] == nil {
		op.RequestBody.Description = "See the description of the operation; it is read as it comes."
	}
	for _, status := range refusals(op, route) {
		code := strconv.Itoa(status)
		if described := op.Responses[code]; described == nil || described.Content[apicore.ProblemType] != nil {
			op.Responses[code] = &huma.Response{Ref: "#/components/responses/" + nameOf(status)}
		}
	}
}

func describedRefusals(registry huma.Registry) map[string]*huma.Response {
	problem := map[string]*huma.MediaType{apicore.ProblemType: {
		Schema: registry.Schema(apicore.TypeOf[huma.ErrorModel](), true, ""),
		Example: huma.ErrorModel{Status: http.StatusUnprocessableEntity, Title: "Unprocessable Entity",
			Detail: `line 3: key "CUST-7" is on line 2 already; remove one of them, or start or open the run with ` +
				"--on-duplicate skip",
			Errors: []*huma.ErrorDetail{{Message: "duplicate key", Location: "items.line", Value: 3}}},
	}}
	all := map[string]*huma.Response{}
	for status, why := range map[int]string{
		http.StatusBadRequest:            "The body does not match its content type.",
		http.StatusUnauthorized:          "There is no token or session, or it is invalid or expired.",
		http.StatusForbidden:             "The role may not do this, or the host or the page's origin is not allowed.",
		http.StatusNotFound:              "It does not exist.",
		http.StatusGone:                  "The run was deleted, by retention or an operator.",
		http.StatusRequestTimeout:        "The body came too slowly.",
		http.StatusConflict:              "The current state does not allow it, or a name is ambiguous.",
		http.StatusRequestEntityTooLarge: "The body is too large.",
		http.StatusUnprocessableEntity:   "The request is wrong; errors says where.",
		http.StatusTooManyRequests:       "Too many concurrent requests, or too often; Retry-After says when to retry.",
		http.StatusInternalServerError:   "Internal error; see the server's log.",
		http.StatusServiceUnavailable: "PostgreSQL or NATS cannot be reached, or is too slow, or there is no room for the " +
			"request; retry, after Retry-After if present.",
	} {
		all[nameOf(status)] = &huma.Response{Description: why, Content: problem}
	}
	return all
}

func nameOf(status int) string { return strings.ReplaceAll(http.StatusText(status), " ", "") }

func refusals(op *huma.Operation, route *apicore.Route) []int {
	all := []int{http.StatusForbidden, http.StatusInternalServerError, http.StatusServiceUnavailable}
	if route.Role != access.None {
		all = append(all, http.StatusUnauthorized)
	}
	changes := op.Method != http.MethodGet
	if changes || len(op.Parameters) > 0 {
		all = append(all, http.StatusUnprocessableEntity)
	}
	ofRun := strings.Contains(op.Path, "{run}") ||
		slices.ContainsFunc(op.Parameters, func(p *huma.Param) bool { return p.Name == "run" })
	if ofRun || strings.Contains(op.Path, "{") {
		all = append(all, http.StatusNotFound)
	}
	if ofRun {
		all = append(all, http.StatusGone)
	}
	if changes || ofRun {
		all = append(all, http.StatusConflict)
	}
	if op.RequestBody != nil {
		all = append(all, http.StatusBadRequest, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge)
	}
	if route.Role == access.None || route.Scans() || changes || flows(op) {
		all = append(all, http.StatusTooManyRequests)
	}
	return all
}

func flows(op *huma.Operation) bool {
	answer := op.Responses["200"]
	return answer != nil && answer.Content["text/event-stream"] != nil
}

func tags() []*huma.Tag {
	return []*huma.Tag{
		{Name: "runs", Description: "Start, list, pause, change and cancel runs."},
		{Name: "items", Description: "Items, failures, reruns and exports."},
		{Name: "live", Description: "Event streams, planes, charts and requests of a run in progress."},
		{Name: "plans", Description: "Saved plans, in versions."},
		{Name: "schedules", Description: "Runs started by the clock."},
		{Name: "alerts", Description: "Who is notified of conditions."},
		{Name: "trackers", Description: "Tracker batches: when all items of a fan-out are done."},
		{Name: "collectors", Description: "Operations sent in lists, by key."},
		{Name: "endpoints", Description: "Listeners, work and settings."},
		{Name: "dead letters", Description: "Requests that no service could handle, and unreadable messages."},
		{Name: "system", Description: "Health, nodes, audit log and checks."},
		{Name: "access", Description: "Tokens and sessions."},
	}
}

func tagOf(op *huma.Operation) string {
	words := strings.Split(strings.Trim(op.Path, "/"), "/")
	byLast := map[string]string{
		"items": "items", "errors": "items", "export": "items", "rerun": "items", "reset": "items", "accept": "items",
		"correct": "items",
		"preview": "items", "{key}": "items", "result": "items", "planes": "live", "events": "live", "timeline": "live",
		"slices": "live",
	}
	if tag, ok := byLast[words[len(words)-1]]; ok && !slices.Contains([]string{"plans", "schedules", "audit"}, words[0]) {
		return tag
	}
	if slices.ContainsFunc(tags(), func(t *huma.Tag) bool { return t.Name == words[0] }) {
		return words[0]
	}
	byFirst := map[string]string{
		"dead-letters": "dead letters", "quarantine": "dead letters", "tokens": "access", "session": "access",
	}
	return cmp.Or(byFirst[words[0]], "system")
}

// Example items by body type.
const (
	exampleCSV    = "id,name,year\nCUST-1,Ann,2026\nCUST-2,Bob,2026\n"
	exampleNDJSON = `{"id":"CUST-1","name":"Ann","year":2026}` + "\n" + `{"id":"CUST-2","name":"Bob","year":2026}` + "\n"
	examplePlan   = "name: year-end\nchunk: 500\nsteps:\n  accounts: {endpoint: accounts}\n" +
		"  statement: {endpoint: compose, needs: [accounts]}\n"
	exampleParquet = "PAR1…"
)

func bodyExamples() map[string]any {
	type fields = map[string]any
	all := fields{"all": true, "reason": "the bank's ledger is being repaired"}
	why := fields{"reason": "the bank's ledger is being repaired"}
	return map[string]any{
		"rerun":                fields{"codes": []string{"TIMEOUT"}, "canary": 100, "canary_auto_approve": true, "chunk": 50},
		"reset":                fields{"step": "accounts", "keys": []string{"CUST-7"}, "reason": "the account was corrected"},
		"accept":               fields{"groups": []string{"5f2c9a10"}, "reason": "these accounts are closed"},
		"correct-item":         fields{"payload": fields{"id": "CUST-7", "balance": "120.50"}, "reason": "was a number"},
		"note-run":             fields{"text": "the bank sends the rest of the accounts at 22:00"},
		"mute-condition":       fields{"kind": "dead_letters", "subject": "lost", "for": "8h", "reason": "until the release"},
		"ack-condition":        fields{"kind": "no_listeners", "subject": "compose"},
		"clear-condition":      fields{"kind": "dead_letters"},
		"pause-run":            why,
		"pause-all-runs":       all,
		"resume-run":           fields{"max_failed": "2%"},
		"resume-all-runs":      all,
		"approve-run":          fields{"step": "send", "reason": "looked at the statements of the sample"},
		"approve-all-runs":     all,
		"cancel-run":           fields{"reason": "started with last year's file"},
		"cancel-all-runs":      all,
		"erase":                fields{"key": "CUST-7", "reason": "article 17", "dry_run": true},
		"delete-run":           fields{"reason": "a rehearsal", "dry_run": true},
		"seal-run":             fields{"expect": 1000000},
		"set-run":              fields{"step": "accounts", "chunk": "auto", "in_flight": 16, "rate": 2000, "timeout": "5m"},
		"open-run":             fields{"plan_ref": "year-end", "name": "2026", "seal_within": "6h", "on_overdue": "report"},
		"set-endpoint":         fields{"concurrency": 8, "max_in_flight": 64, "rate": 5000},
		"revoke-sessions":      fields{"user": "ann@example.com"},
		"open-tracker":         fields{"owner": "billing", "key": "2026-11"},
		"add-tracker-items":    fields{"items": 20000, "key": "first"},
		"ack-tracker-items":    fields{"ids": []string{"0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d58:0:17"}},
		"ack-tracker":          fields{"ranges": []string{"0:100-199", "1-2"}, "code": "REFUSED"},
		"drop-dead-letters":    fields{"ids": []string{"0198f2b1-7c31-7"}},
		"requeue-dead-letters": fields{"endpoint": "accounts"},
		"requeue-operations":   fields{"code": "TIMEOUT"},
		"drop-operations":      fields{"ids": []string{"order-17"}},
		"log-in":               fields{"token": "tr_7Zk…"},
		"set-retention":        fields{"age": "90d", "max_bytes": 50 << 30},
		"set-streams":          fields{"replicas": 3, "work_bytes": 2 << 30},
		"run-retention":        fields{"dry_run": true},
		"rotate-token":         fields{"overlap": "24h"},
		"create-token":         fields{"name": "nightly", "role": "operator", "expires_in": "720h"},
		"set-namespace":        fields{"max_runs": 20, "max_items": 5_000_000},
	}
}

func describeExamples(doc *huma.OpenAPI) {
	examples := bodyExamples()
	for _, item := range doc.Paths {
		for _, op := range apicore.DescribedOf(item) {
			for _, p := range op.Parameters {
				describeParameter(p)
			}
			if op.RequestBody == nil {
				continue
			}
			for kind, content := range op.RequestBody.Content {
				content.Example = exampleOf(kind, op.OperationID, examples)
			}
		}
	}
}

func exampleOf(kind, operation string, examples map[string]any) any {
	switch kind {
	case "text/csv", "application/octet-stream":
		return exampleCSV
	case apicore.MimeNDJSON:
		return exampleNDJSON
	case "application/yaml":
		return examplePlan
	case runs.MimeParquet:
		return exampleParquet
	case "multipart/form-data":
		return map[string]any{runs.PartRun: map[string]any{"endpoint": "accounts", "name": "2026"},
			runs.PartItems: exampleCSV}
	default:
		return examples[operation]
	}
}

func describeParameter(p *huma.Param) {
	if p.Description == "" {
		p.Description = map[string]string{
			"limit":           "how many at most",
			"version":         "a version of the plan; they count from 1",
			"id":              "its number in the list",
			"endpoint":        "run this single endpoint instead of a plan",
			"key":             "the column or field that is the item's key; absent: key, then id, then the first column",
			"format":          "of the items or the export; absent: detected, or ndjson",
			"name":            "a name to find the run by",
			"idempotency_key": "starting again with the same key returns the same run",
			"on_duplicate":    "what to do with a duplicate key",
			"source":          "where the items come from, human-readable",
		}[p.Name]
	}
	if p.Schema != nil && p.Schema.Description == "" {
		p.Schema.Description = p.Description // where generators read it
	}
	if p.In == "query" && p.Example == nil && p.Schema != nil && len(p.Schema.Enum) > 0 {
		p.Example = slices.Clone(p.Schema.Enum)[0]
	}
}
