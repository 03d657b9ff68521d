package runs_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/apitest"
)

const schemaOfAccounts = `{"type":"object","required":["id","balance"],"properties":{` +
	`"balance":{"type":"string","pattern":"^[0-9]+$"}}}`

func TestItemsThatDoNotFitAreRefusedTogether(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	plan := "name: p\nitems: {schema: " + schemaOfAccounts + "}\nsteps: [{endpoint: echo}]\n"
	for name, start := range map[string]func(items string) (int, string){
		"a plan": func(items string) (int, string) { return b.StartWith(fmt.Sprintf(`{"plan":%q}`, plan), items) },
		"one endpoint": func(items string) (int, string) {
			return b.StartWith(`{"endpoint":"echo","source":"a.csv","schema":`+schemaOfAccounts+`}`, items)
		},
	} {
		status, text := start("id,balance\nC-1,1\nC-2,x\nC-3,\n")
		if status != 422 || !strings.Contains(text, "2 items do not fit the schema") ||
			!strings.Contains(text, `line 3, key \"C-2\", field \"balance\": 'x' does not match pattern`) ||
			!strings.Contains(text, `{"message":"key \"C-3\", field \"balance\"`) {
			t.Errorf("%s: %d %s", name, status, text)
		}
		var many strings.Builder
		many.WriteString("id,saldo\n")
		for i := range 100 {
			fmt.Fprintf(&many, "C-%d,1\n", i)
		}
		status, text = start(many.String())
		if status != 422 || !strings.Contains(text, "the first 20 places are") ||
			!strings.Contains(text, " on_invalid=fail") || strings.Count(text, `"location":"items.line"`) != 20 {
			t.Errorf("%s: %d %s", name, status, text)
		}
		if n := b.Number(`SELECT count(*) FROM batchrun`); n != 0 {
			t.Errorf("%s: %d runs", name, n)
		}
		if status, text = start("id,balance\nC-1,1\n"); status != 201 {
			t.Errorf("%s: %d %s", name, status, text)
		}
		if _, err := b.Pool.Exec(b.Context(), `DELETE FROM batchrun`); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOpenRunHoldsItsItemsAgainstItsSchema(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Want("/runs/open", `{"endpoint":"echo","name":"o","schema":`+schemaOfAccounts+`}`, 200)
	b.Want("/runs/o/items", "id,balance\nC-1,1\nC-2,x\n", 422, "one item does not fit the schema", `line 3, key \"C-2\"`)
	b.Want("/runs/o/items", "id,balance\nC-1,1\n", 200, `"items":1`)
}

func TestPreviewProposesASchema(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Want("/items/preview", "id,balance\nC-1,1\nC-2,2\n", 200,
		`"schema":{"type":"object","required":["id","balance"],"properties":{"id":{"minLength":1,"type":"string"},`+
			`"balance":{"pattern":"^-?[0-9]+$","type":"string"}}}`)
}

func TestInvalidItemsFailAlone(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	const items = "id,balance\nC-1,1\nC-2,x\nC-3,\n"
	settings := `{"endpoint":"echo","name":"it","on_invalid":"fail","schema":` + schemaOfAccounts + `}`
	status, text := b.StartWith(settings, items)
	if status != 201 || !strings.Contains(text, `"items":3`) || !strings.Contains(text, `"invalid":2`) {
		t.Fatalf("%d %s", status, text)
	}
	if n := b.Number(`SELECT sum(bit_count(ready)) FROM work_block`); n != 1 {
		t.Errorf("%d items are asked for", n)
	}
	b.Says(409, "/runs/it/rerun", `{"codes":["invalid"]}`, "2 items are invalid")
	_, failed := b.Ask("GET", "/api/v1/runs/it/errors", nil)
	for _, part := range []string{`"code":"invalid"`, "does not match pattern"} {
		if !strings.Contains(string(failed), part) {
			t.Errorf("%s; want %s", failed, part)
		}
	}
	_, item := b.Ask("GET", "/api/v1/runs/it/items/C-3", nil)
	if !strings.Contains(string(item), `"state":"failed"`) || !strings.Contains(string(item), `"invalid"`) {
		t.Errorf("%s", item)
	}
	for _, c := range []struct{ settings, want string }{
		{`{"endpoint":"echo","on_invalid":"fail"}`, "there is no schema"},
		{`{"endpoint":"echo","on_invalid":"fail","schema":{},"order_by":"id"}`, "does not go with order_by"},
		{`{"endpoint":"echo","schema":{"type":3}}`, "it is no JSON Schema"},
	} {
		if status, text := b.StartWith(c.settings, items); status != 422 || !strings.Contains(text, c.want) {
			t.Errorf("%s: %d %s", c.settings, status, text)
		}
	}
	b.Want("/runs/open", settings, 422, "is for runs that are started with all their items")
}
