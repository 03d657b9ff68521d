package runs_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// Data is corrected from a file and item by item, and whoever looks sees it.
func TestCorrectTheDataOfItems(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	run := b.Start("name=c").Run
	all := func(workqueue.Ordinal) []byte { return []byte("1") }
	b.Answer(run, "", all)
	csv := "id,name\n2,BOB\n3,cy\n"
	b.Says(200, "/runs/c/correct?dry_run=true", csv, `"dry_run":true`, `"items":1`, `"same":1`, `"examples":["2"]`)
	b.Says(200, "/runs/c/correct?reason=case", csv, `"generation":2`, `"begun":1`, `"key":"id"`)
	b.Says(409, "/runs/c/correct", csv, "2 items are in the run just as given")
	b.Says(404, "/runs/c/correct", "id\n7\n", `has no item with key`, `7`, `nothing was changed`)
	b.Says(422, "/runs/c/correct", "id,name\n2,x\n2,y\n", "line 3", "given before")
	b.Says(404, "/runs/none/correct", csv)
	b.Answer(run, "", all)
	put := func(status int, key, body string, parts ...string) {
		t.Helper()
		code, text := b.Ask(http.MethodPost, api.Prefix+"/runs/c/items/"+key+"/correct", strings.NewReader(body),
			"Content-Type", "application/json", kernel.ActorHeader, "ann")
		for _, part := range append(parts, "") {
			if code != status || !strings.Contains(string(text), part) {
				t.Errorf("POST %s: %d %s; want %d and %s", body, code, text, status, part)
			}
		}
	}
	put(200, "2", `{"payload":{"id": "2",
		"name": "Bob"}}`, `"items":1`, `"generation":3`)
	put(422, "2", `{"payload":[1]}`, "payload: ", "JSON object")
	put(422, "2", `{"payload":{"a":"\u0000"}}`, "NUL")
	put(404, "7", `{"payload":{}}`)
	b.Answer(run, "", all)
	for path, want := range map[string]string{
		"/runs/c/items/2": `"earlier_payloads":[{"generation":3,"payload":{"id":"2","name":"BOB"},`,
		"/runs/c/report":  `"corrected":{"items":1,"made":1,`,
		"/runs/c/history": `correct`,
	} {
		if _, text := b.Get(path); !strings.Contains(text, want) {
			t.Errorf("%s does not say %s: %s", path, want, text)
		}
	}
}

// What corrects items has to fit the schema of the run, and fixes what did not.
func TestCorrectionsFitTheSchema(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	plan := "items:\n  on_invalid: fail\n  schema:\n    type: object\n    required: [name]\n    properties:\n" +
		"      name: {type: string, minLength: 2}\nsteps:\n  - {name: echo, endpoint: echo}\n"
	b.Says(200, "/plans?name=s", plan)
	b.Says(201, "/runs?plan_ref=s&name=s", "id,name\n1,ann\n2,b\n", `"invalid":1`)
	var run workqueue.RunID
	testenv.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT id FROM batchrun WHERE name = 's'`).Scan(&run))
	b.Answer(run, "", func(workqueue.Ordinal) []byte { return []byte("1") })
	b.Says(422, "/runs/s/correct", "id,name\n2,c\n", "Nothing was corrected")
	b.Says(422, "/runs/s/items/2/correct", `{"payload":{"id":"2","name":"c"}}`, "payload: ", "name")
	b.Says(200, "/runs/s/items/2/correct", `{"payload":{"id":"2","name":"bob"}}`, `"begun":1`)
	b.Answer(run, "", func(workqueue.Ordinal) []byte { return []byte("1") })
	if _, text := b.Get("/runs/s"); !strings.Contains(text, `"done":2,"failed":0`) {
		t.Errorf("the run: %s", text)
	}
}

// A run carries on what an earlier one failed, some of it with other data; both are linked, counted and
// compared as one.
func TestCarryOnAnEarlierRun(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	first := b.Start("name=first&param=year%3D2026").Run
	b.Says(409, "/runs?from_run=first", "", "carry on", "wait until it has ended")
	b.Answer(first, "", func(o workqueue.Ordinal) []byte {
		if o == 0 {
			return []byte("1")
		}
		return nil
	})
	b.Says(422, "/runs?from_run=first", "id,name\n2,x\n9,y\n", "not among those taken", `\"9\"`)
	b.Says(201, "/runs?endpoint=echo&name=twins&on_duplicate=allow", "id,name\n1,ann\n1,bob\n")
	var twins workqueue.RunID
	testenv.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT id FROM batchrun WHERE name = 'twins'`).Scan(&twins))
	b.Answer(twins, "", func(workqueue.Ordinal) []byte { return nil })
	b.Says(422, "/runs?from_run=twins&on_duplicate=allow", "id,name\n1,x\n", "several items", "which of them is meant")
	b.Says(422, "/runs?from_run=first&from_state=late", "", "failed, missing or cancelled")
	b.Says(422, "/runs?from_run=first&from_state=missing", "", "no items in these states")
	b.Says(201, "/runs?from_run=first&from_state=failed&name=second", "id,name\n2,BOB\n", `"items":2`, `"plan":"echo"`)
	var second workqueue.RunID
	testenv.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT id FROM batchrun WHERE name = 'second'`).Scan(&second))
	b.Answer(second, "", func(o workqueue.Ordinal) []byte {
		if o == 0 {
			return []byte("1")
		}
		return nil
	})
	for path, want := range map[string]string{
		"/runs/second":         `"from_run":"` + first.String(),
		"/runs/first":          `"carried_on":["` + second.String(),
		"/runs?limit=2":        `"from_run":"` + first.String(),
		"/runs/second/items/2": `"name":"BOB"`,
		"/runs/second/items/3": `"name":"cy"`,
		"/runs/second/report":  `"together":{"runs":["` + first.String() + `"],"items":3,"done":2,"failed":1,"missing":0}`,
		"/runs/second/report?against=first": `"against":{"against":"` + first.String() + `","changes":[` +
			`{"change":"newly_failing","items":0,"examples":[]},{"change":"newly_fixed","items":1,`,
	} {
		if _, text := b.Get(path); !strings.Contains(text, want) {
			t.Errorf("%s does not say %s: %s", path, want, text)
		}
	}
	if _, text := b.Get("/runs/second/comparison?against=first"); strings.Count(text, "\n") != 3 ||
		!strings.Contains(text, `"change":"unchanged"`) || !strings.Contains(text, `"change":"still_failing"`) {
		t.Errorf("the comparison: %s", text)
	}
	if _, text := b.Get("/runs/second"); !strings.Contains(text, `"year":"2026"`) {
		t.Errorf("the parameters are lost: %s", text)
	}
}

// Items are chosen by evidence, in bodies and in the query of an export.
func TestEvidenceInBodiesAndQueries(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	run := b.Start("name=v").Run
	b.Answer(run, "", func(workqueue.Ordinal) []byte { return []byte(`{"n":1}`) })
	b.Says(200, "/runs/v/rerun", `{"service":"test","where":"$.name == \"bob\"","dry_run":true}`, `"items":1`,
		`"examples":["2"]`)
	b.Says(200, "/runs/v/reset", `{"where_result":"$.n > 0","since":"2020-01-01T00:00:00Z","dry_run":true}`, `"items":3`)
	b.Says(200, "/runs/v/reset", `{"keys":["2","3"],"where":"$.name == \"bob\"","dry_run":true}`, `"items":1`)
	b.Says(409, "/runs/v/rerun", `{"service":"other"}`, "the evidence is true of nothing",
		`(service \"other\"); who made an item's parts: tranche run item `)
	answer, text := b.Get("/runs/v/export?key=9")
	if answer.StatusCode != http.StatusNotFound || strings.Contains(text, "changed") {
		t.Errorf("an export of a key that is not there: %d %s", answer.StatusCode, text)
	}
	b.Says(409, "/runs/v/accept", `{"states":["failed"],"reason":"r"}`, "nothing to accept")
	b.Says(422, "/runs/v/rerun", `{"where":"$.a = 1"}`, "no path of SQL/JSON")
	b.Says(422, "/runs/v/rerun", `{"since":"yesterday"}`, "RFC 3339")
	b.Says(422, "/runs/v/rerun", `{"states":["late"]}`, "done or failed")
	b.Says(422, "/runs/v/rerun", `{}`, "choose one of", "or evidence: states, service")
	_, text = b.Get("/runs/v/export?service=test&where=" + "%24.name%20%3D%3D%20%22cy%22")
	if strings.Count(text, "\n") != 1 ||
		!strings.Contains(text, `"key":"3"`) {
		t.Errorf("the export: %s", text)
	}
	if head, text := b.Get("/runs/v/export?where=%24.a%20%3D%201"); head.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("an export by what is no path: %d %s", head.StatusCode, text)
	}
}
