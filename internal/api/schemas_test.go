package api_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

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
