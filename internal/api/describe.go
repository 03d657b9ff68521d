package api

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api/kernel"
)

const introduction = `All that Tranche does, for programs: its own command line and dashboard use nothing else.

Answers that say no are application/problem+json. Lists come in pages: pass the value of next on. What a page or script
needs beyond this document is in docs/api.md.`

// Names of the security schemes.
const (
	schemeBearer  = "bearer"
	schemeSession = "session"
)

// describe completes the document with what all operations have in common, so that no registration has to say it: tags,
// who may, how to say who one is, and the answers that say no.
func describe(doc *huma.OpenAPI) *huma.OpenAPI {
	doc.Info.Description = introduction
	doc.Info.License = &huma.License{Name: "Apache 2.0", Identifier: "Apache-2.0"}
	doc.Tags = tags()
	doc.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		schemeBearer: {Type: "http", Scheme: "bearer", Description: "An API token, for programs. With --auth off none is " +
			"needed, and one that is sent is not looked at."},
		schemeSession: {Type: "apiKey", In: "cookie", Name: "tranche_session", Description: "The session of somebody who " +
			"has logged in to the dashboard."},
	}
	doc.Components.Responses = describedRefusals(doc.Components.Schemas)
	for path, item := range doc.Paths {
		for _, op := range kernel.DescribedOf(item) {
			op.Path = path
			describeOperation(op)
		}
	}
	describeExamples(doc)
	return doc
}

func describeOperation(op *huma.Operation) {
	op.Tags = []string{tagOf(op)}
	role, _ := op.Metadata[kernel.MetaRole].(access.Role)
	op.Security = []map[string][]string{{schemeBearer: {}}, {schemeSession: {}}}
	if role == access.None {
		op.Security = []map[string][]string{} // explicitly nothing
	}
	if op.Extensions == nil {
		op.Extensions = map[string]any{}
	}
	op.Extensions["x-tranche-role"] = string(role)
	delete(op.Responses, "default")
	if op.RequestBody != nil && op.RequestBody.Description == "" && op.RequestBody.Content["application/json"] == nil {
		op.RequestBody.Description = "See the description of the operation; it is read as it comes."
	}
	for _, status := range refusals(op, role) {
		code := strconv.Itoa(status)
		if described := op.Responses[code]; described == nil || described.Content[kernel.ProblemType] != nil {
			op.Responses[code] = &huma.Response{Ref: "#/components/responses/" + nameOf(status)}
		}
	}
}

// describedRefusals are the answers that say no, described once.
func describedRefusals(registry huma.Registry) map[string]*huma.Response {
	problem := map[string]*huma.MediaType{kernel.ProblemType: {
		Schema: registry.Schema(kernel.TypeOf[huma.ErrorModel](), true, ""),
		Example: huma.ErrorModel{Status: http.StatusUnprocessableEntity, Title: "Unprocessable Entity",
			Detail: "line 3: the key CUST-7 stands twice, first in line 2; see --on-duplicate",
			Errors: []*huma.ErrorDetail{{Message: "the key stands twice", Location: "items.line", Value: 3}}},
	}}
	all := map[string]*huma.Response{}
	for status, why := range map[int]string{
		http.StatusBadRequest:            "The body is not of the form that its type says.",
		http.StatusUnauthorized:          "There is no token or session, or it is not valid (any more).",
		http.StatusForbidden:             "The role may not do this, or the host or the page's origin is not allowed.",
		http.StatusNotFound:              "There is no such thing.",
		http.StatusGone:                  "The run was deleted, by the limits of what is kept.",
		http.StatusRequestTimeout:        "Nothing more came of the body for too long.",
		http.StatusConflict:              "The state of the thing does not allow it, or a name means several.",
		http.StatusRequestEntityTooLarge: "The body is too large.",
		http.StatusUnprocessableEntity:   "What was sent is wrong; errors says where.",
		http.StatusTooManyRequests:       "Too many at once, or too often; Retry-After says when to ask again.",
		http.StatusInternalServerError:   "Something went wrong inside; the log of the server says what.",
		http.StatusServiceUnavailable: "PostgreSQL or NATS cannot be reached, or is too slow, or there is no room for the " +
			"request; ask again, after Retry-After if that is there.",
	} {
		all[nameOf(status)] = &huma.Response{Description: why, Content: problem}
	}
	return all
}

// nameOf is the name of a described answer.
func nameOf(status int) string { return strings.ReplaceAll(http.StatusText(status), " ", "") }

// refusals are the answers that say no which an operation can give.
func refusals(op *huma.Operation, role access.Role) []int {
	all := []int{http.StatusForbidden, http.StatusInternalServerError, http.StatusServiceUnavailable}
	if role != access.None {
		all = append(all, http.StatusUnauthorized)
	}
	changes := op.Method != http.MethodGet
	if changes || len(op.Parameters) > 0 {
		all = append(all, http.StatusUnprocessableEntity)
	}
	ofRun := strings.Contains(op.Path, "{run}") || names(op, "run")
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
	if role == access.None || kernel.IsSet(op, kernel.MetaHeavy) || changes || flows(op) {
		all = append(all, http.StatusTooManyRequests)
	}
	return all
}

// flows reports whether an operation answers with events, of whose streams only so many are open at once.
func flows(op *huma.Operation) bool {
	answer := op.Responses["200"]
	return answer != nil && answer.Content["text/event-stream"] != nil
}

// names reports whether an operation has a parameter.
func names(op *huma.Operation, parameter string) bool {
	return slices.ContainsFunc(op.Parameters, func(p *huma.Param) bool { return p.Name == parameter })
}

// tags are the groups of operations, in the order in which one meets them.
func tags() []*huma.Tag {
	return []*huma.Tag{
		{Name: "runs", Description: "Start, open, list, look at, pause, change and cancel runs."},
		{Name: "items", Description: "The items of a run: their stories, what failed, running them again, exports."},
		{Name: "live", Description: "What a page shows while a run goes on: streams of events, planes, charts, requests."},
		{Name: "plans", Description: "Plans on record, in versions."},
		{Name: "schedules", Description: "What is started by the clock, and what became of it."},
		{Name: "alerts", Description: "Who is told what a person must see to, and what became of it."},
		{Name: "trackers", Description: "Tracker batches: when all items of a fan-out are done."},
		{Name: "collectors", Description: "Operations that wait for each other, to be flushed together by their keys."},
		{Name: "endpoints", Description: "Who listens, what there is to do, and the settings of both."},
		{Name: "dead letters", Description: "Requests that no service could deal with, and messages that nobody could take."},
		{Name: "system", Description: "Health, nodes, the audit log, the doctor, and what the server is."},
		{Name: "access", Description: "Tokens, and sessions of those who logged in."},
	}
}

// tagOf finds the group by the words of the path.
func tagOf(op *huma.Operation) string {
	words := strings.Split(strings.Trim(op.Path, "/"), "/")
	byLast := map[string]string{
		"items": "items", "errors": "items", "export": "items", "rerun": "items", "reset": "items", "accept": "items",
		"correct": "items",
		"preview": "items", "{key}": "items", "result": "items", "planes": "live", "events": "live", "timeline": "live",
		"slices": "live",
	}
	byFirst := map[string]string{
		"runs": "runs", "items": "items", "plans": "plans", "collectors": "collectors", "schedules": "schedules",
		"trackers":     "trackers",
		"alerts":       "alerts",
		"endpoints":    "endpoints",
		"dead-letters": "dead letters", "quarantine": "dead letters", "tokens": "access", "session": "access",
	}
	if tag, ok := byLast[words[len(words)-1]]; ok && words[0] != "plans" && words[0] != "schedules" {
		return tag
	}
	if tag, ok := byFirst[words[0]]; ok {
		return tag
	}
	return "system"
}
