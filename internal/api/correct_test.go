package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/workqueue"
)

// Data is corrected from a file and item by item, and whoever looks sees it.
func TestCorrectTheDataOfItems(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.start("name=c").Run
	all := func(workqueue.Ordinal) []byte { return []byte("1") }
	b.answer(run, "", all)
	csv := "id,name\n2,BOB\n3,cy\n"
	b.says(200, "/runs/c/correct?dry_run=true", csv, `"dry_run":true`, `"items":1`, `"same":1`, `"examples":["2"]`)
	b.says(200, "/runs/c/correct?reason=case", csv, `"generation":2`, `"begun":1`, `"key":"id"`)
	b.says(409, "/runs/c/correct", csv, "2 items are in the run just as given")
	b.says(404, "/runs/c/correct", "id\n7\n", `has no item with key`, `7`)
	b.says(422, "/runs/c/correct", "id,name\n2,x\n2,y\n", "line 3", "given before")
	b.says(404, "/runs/none/correct", csv)
	b.answer(run, "", all)
	put := func(status int, key, body string, parts ...string) {
		t.Helper()
		code, text := b.ask(http.MethodPost, api.Prefix+"/runs/c/items/"+key+"/correct", strings.NewReader(body),
			"Content-Type", "application/json", api.ActorHeader, "ann")
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
	b.answer(run, "", all)
	for path, want := range map[string]string{
		"/runs/c/items/2": `"earlier_payloads":[{"generation":3,"payload":{"id":"2","name":"BOB"},`,
		"/runs/c/report":  `"corrected":{"items":1,"made":1,`,
		"/runs/c/history": `correct`,
	} {
		if _, text := b.get(path); !strings.Contains(text, want) {
			t.Errorf("%s does not say %s: %s", path, want, text)
		}
	}
}
