package api

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/access"
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
	problem := &huma.MediaType{Schema: doc.Components.Schemas.Schema(typeOf[huma.ErrorModel](), true, "")}
	for path, item := range doc.Paths {
		for _, op := range describedOf(item) {
			op.Path = path
			describeOperation(op, problem)
		}
	}
	describeExamples(doc)
	return doc
}

func describedOf(item *huma.PathItem) (all []*huma.Operation) {
	for _, op := range []*huma.Operation{item.Get, item.Put, item.Post, item.Delete, item.Patch} {
		if op != nil {
			all = append(all, op)
		}
	}
	return all
}

func describeOperation(op *huma.Operation, problem *huma.MediaType) {
	op.Tags = []string{tagOf(op)}
	role, _ := op.Metadata[metaRole].(access.Role)
	op.Security = []map[string][]string{{schemeBearer: {}}, {schemeSession: {}}}
	if role == access.None {
		op.Security = []map[string][]string{} // explicitly nothing
	}
	if op.Extensions == nil {
		op.Extensions = map[string]any{}
	}
	op.Extensions["x-tranche-role"] = string(role)
	delete(op.Responses, "default")
	for status, why := range refusals(op, role) {
		code := strconv.Itoa(status)
		if described := op.Responses[code]; described == nil || described.Content[problemType] != nil {
			op.Responses[code] = &huma.Response{Description: why, Content: map[string]*huma.MediaType{problemType: problem}}
		}
	}
}

// refusals are the answers that say no which an operation can give.
func refusals(op *huma.Operation, role access.Role) map[int]string {
	all := map[int]string{
		http.StatusForbidden:           "The host is not one of the server's, or the page is of another origin.",
		http.StatusInternalServerError: "Something went wrong inside; the log of the server says what.",
		http.StatusServiceUnavailable:  "PostgreSQL or NATS cannot be reached, or is too slow; ask again.",
	}
	if role != access.None {
		all[http.StatusUnauthorized] = "There is no token or session, or it is not valid (any more)."
		all[http.StatusForbidden] += " Or the role may not do this."
	}
	changes := op.Method != http.MethodGet
	if changes || len(op.Parameters) > 0 {
		all[http.StatusUnprocessableEntity] = "What was sent is wrong; errors says where."
	}
	if strings.Contains(op.Path, "{") || names(op, "run") {
		all[http.StatusNotFound] = "There is no such thing."
	}
	if changes || names(op, "run") {
		all[http.StatusConflict] = "The state of the thing does not allow it, or a name means several."
	}
	if changes {
		all[http.StatusRequestEntityTooLarge] = "The body is too large."
	}
	if op.RequestBody != nil {
		all[http.StatusBadRequest] = "The body is not of the form that its type says."
		all[http.StatusRequestTimeout] = "Nothing more came of the body for too long."
	}
	if role == access.None || op.Metadata[metaHeavy] == true || changes {
		all[http.StatusTooManyRequests] = "Too many at once, or too often; Retry-After says when to try again."
	}
	return all
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
		"items": "items", "errors": "items", "export": "items", "rerun": "items", "reset": "items", "preview": "items",
		"{key}": "items", "result": "items", "planes": "live", "events": "live", "timeline": "live", "slices": "live",
	}
	byFirst := map[string]string{
		"runs": "runs", "items": "items", "plans": "plans", "endpoints": "endpoints", "dead-letters": "dead letters",
		"quarantine": "dead letters", "tokens": "access", "session": "access",
	}
	if tag, ok := byLast[words[len(words)-1]]; ok && words[0] != "plans" {
		return tag
	}
	if tag, ok := byFirst[words[0]]; ok {
		return tag
	}
	return "system"
}

// statuses are the codes of an operation's answers, in order.
func statuses(op *huma.Operation) []string { return slices.Sorted(maps.Keys(op.Responses)) }
