package api_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// Every operation of the document says what it does, whatever it needs to say no to, and gives examples that are what
// they are examples of.
func TestEveryOperationIsDescribed(t *testing.T) {
	t.Parallel()
	doc := api.Document()
	seen := 0
	for path, item := range doc.Paths {
		for method, op := range map[string]*huma.Operation{
			http.MethodGet: item.Get, http.MethodPost: item.Post, http.MethodDelete: item.Delete, http.MethodPut: item.Put,
		} {
			if op == nil {
				continue
			}
			seen++
			t.Run(method+" "+path, func(t *testing.T) {
				t.Parallel()
				checkWords(t, doc, op)
				checkRefusals(t, doc, op)
				checkExamples(t, doc, op)
			})
		}
	}
	if seen < 50 {
		t.Errorf("only %d operations were looked at", seen)
	}
}

func checkWords(t *testing.T, doc *huma.OpenAPI, op *huma.Operation) {
	t.Helper()
	if op.OperationID == "" || op.Summary == "" || strings.HasSuffix(op.Summary, ".") {
		t.Errorf("the operation %q has no id, or its summary %q is none", op.OperationID, op.Summary)
	}
	if len(op.Tags) != 1 || !slices.ContainsFunc(doc.Tags, func(g *huma.Tag) bool { return g.Name == op.Tags[0] }) {
		t.Errorf("tags %q are not one of the document's", op.Tags)
	}
	role, _ := op.Extensions["x-tranche-role"].(string)
	if !slices.Contains([]string{"none", "watcher", "viewer", "operator", "admin"}, role) {
		t.Errorf("role %q: say in its registration who may do it", role)
	}
	if role != "none" && len(op.Security) == 0 {
		t.Error("it does not say how to say who one is")
	}
	for _, way := range op.Security {
		for name := range way {
			if doc.Components.SecuritySchemes[name] == nil {
				t.Errorf("security scheme %q is not described", name)
			}
		}
	}
	for _, p := range op.Parameters {
		if p.Description == "" {
			t.Errorf("parameter %s has no description", p.Name)
		}
	}
}

func checkRefusals(t *testing.T, doc *huma.OpenAPI, op *huma.Operation) {
	t.Helper()
	want := []string{"403", "500", "503"}
	if op.Extensions["x-tranche-role"] != "none" {
		want = append(want, "401")
	}
	if strings.Contains(op.Path, "{") {
		want = append(want, "404")
	}
	if op.RequestBody != nil {
		want = append(want, "400", "413", "422")
	}
	success := false
	for code, answer := range op.Responses {
		if code[0] == '2' {
			success = true
			if answer.Description == "" {
				t.Errorf("answer %s has no description", code)
			}
			continue
		}
		if answer.Ref != "" {
			answer = doc.Components.Responses[strings.TrimPrefix(answer.Ref, "#/components/responses/")]
		}
		if code[0] != '3' && (answer == nil || answer.Content["application/problem+json"] == nil) {
			t.Errorf("answer %s is not a problem document", code)
		}
	}
	for _, code := range want {
		if op.Responses[code] == nil {
			t.Errorf("answer %s is not described", code)
		}
	}
	if !success {
		t.Errorf("there is no answer that says yes among %q", slices.Collect(maps.Keys(op.Responses)))
	}
}

func checkExamples(t *testing.T, doc *huma.OpenAPI, op *huma.Operation) {
	t.Helper()
	if op.RequestBody == nil {
		return
	}
	for kind, content := range op.RequestBody.Content {
		if content.Example == nil {
			t.Errorf("the body as %s has no example; add it to describe.go", kind)
			continue
		}
		if kind != "application/json" {
			continue
		}
		text := testenv.Must(json.Marshal(content.Example))(t)
		var value any
		testenv.NoError(t, json.Unmarshal(text, &value))
		found := &huma.ValidateResult{}
		huma.Validate(doc.Components.Schemas, content.Schema, huma.NewPathBuffer(nil, 0), huma.ModeWriteToServer, value,
			found)
		for _, e := range found.Errors {
			t.Errorf("the example does not fit: %v", e)
		}
	}
}

var (
	fence    = regexp.MustCompile("(?s)\n```yaml\n(.*?)```\n")
	modeline = regexp.MustCompile(`^# yaml-language-server: \$schema=http://` + api.DefaultListen +
		`/schemas/(\w+)\.json\n`)
	fragment = regexp.MustCompile(`^( |- name:|done_by:|apiVersion:|volumes:|scrape_configs:)`) // or of other programs
)

// The YAML documents of the examples and pages name their schema and fit it. Misspelled ones do not.
func TestExamplesFitTheSchemasThatTheyName(t *testing.T) {
	t.Parallel()
	schemas, seen := map[string]*jsonschema.Schema{}, map[string]bool{}
	for name, schema := range api.Schemas() {
		text := testenv.Must(json.Marshal(schema))(t)
		compiler := jsonschema.NewCompiler()
		testenv.NoError(t, compiler.AddResource(name, testenv.Must(jsonschema.UnmarshalJSON(bytes.NewReader(text)))(t)))
		schemas[name] = testenv.Must(compiler.Compile(name))(t)
	}
	fits := func(name, text string) error {
		object := testenv.Must(yaml.YAMLToJSON([]byte(text)))(t)
		return schemas[name].Validate(testenv.Must(jsonschema.UnmarshalJSON(bytes.NewReader(object)))(t))
	}
	check := func(at, text string) {
		line := modeline.FindStringSubmatch(text)
		if len(line) != 2 || schemas[line[1]] == nil {
			t.Errorf("%s: it begins with no line that names its schema:\n%s", at, text)
		} else if err := fits(line[1], text); err != nil {
			t.Errorf("%s: %v", at, err)
		} else {
			seen[line[1]] = true
		}
	}
	for _, at := range testenv.Must(filepath.Glob("../../examples/*/*.yaml"))(t) {
		check(at, string(testenv.Must(os.ReadFile(at))(t)))
	}
	for _, at := range append(testenv.Must(filepath.Glob("../../docs/*.md"))(t), "../../README.md") {
		for _, found := range fence.FindAllStringSubmatch(string(testenv.Must(os.ReadFile(at))(t)), -1) {
			if !fragment.MatchString(found[1]) {
				check(at, found[1])
			}
		}
	}
	testenv.Same(t, len(seen), len(schemas), "of these there are examples: %v", seen)
	for text, want := range map[string]string{
		"plan: {steps: [{endpiont: x}]}":               "endpiont",
		"plan: {steps: [{http: {ulr: x}}]}":            "ulr",
		"plan: {steps: [{endpoint: x, chunk: [5]}]}":   "/steps/0/chunk",
		"plan: {on_failure: halt}":                     "/on_failure",
		"schedule: {settings: {rtae: 5}}":              "rtae",
		"schedule: {overlap: kill}":                    "/overlap",
		"schedule: {start_attempts: 0}":                "/start_attempts",
		"collector: {enrich: {sql: {sorce: x}}}":       "sorce",
		"alert: {to: {webhok: {url: x}}}":              "webhok",
		"connections: {sources: {a: {dsn: {evn: X}}}}": "evn",
		"connections: {sources: {a: {dsn: secret}}}":   "/sources/a/dsn",
	} {
		kind, text, _ := strings.Cut(text, ": ")
		testenv.Says(t, fits(kind, text), want, "%s %s", kind, text)
	}
}
