package runs_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

type saver struct {
	ID      string  `json:"id"`
	Balance float64 `json:"balance,string"`
	Note    *string `json:"note"`
}

// serveSavers serves an endpoint that reads savers, and waits until it says so.
func serveSavers(t *testing.T, e *apitest.Engine, endpoint string) {
	t.Helper()
	nc, _ := e.Serve(func(svc *endpoints.Service) error {
		return endpoints.HandleEach(svc, endpoint, func(_ context.Context, _ saver) (int, error) { return 1, nil })
	})
	testenv.Until(t, time.Minute, "the service says what it reads", func() bool {
		said, err := wire.AskContract(t.Context(), nc, endpoint)
		return err == nil && said.In != nil
	})
}

// A misspelled column would be zero to the service. The start says so instead, and so do its dry run and an add.
func TestItemsAreComparedWithWhatServicesRead(t *testing.T) {
	t.Parallel()
	e := apitest.SetupEngine(t)
	b := e.Bench
	serveSavers(t, e, "interest")
	serveSavers(t, e, "dues")
	const lacks = "interest requires `balance`, which no row has"
	const sum = "{name: sum, endpoint: interest, needs: [gone], inputs: [gone]}"
	const without = "step sum calls interest, which requires `id`, `balance`, and its inputs leave the item out"
	wide := `{"id":"1"`
	for i := range 250 {
		wide = fmt.Sprintf(`%s,"c%d":0`, wide, i)
	}
	multi := func(plan, items string) string {
		return "--x\nContent-Disposition: form-data; name=\"run\"\n\n" + `{"plan":"steps: [` + plan + `]"}` +
			"\n--x\nContent-Disposition: form-data; name=\"items\"\n\n" + items + "\n--x--\n"
	}
	for _, c := range []struct {
		path, items string
		status      int
		want        string
	}{
		{"/runs?endpoint=interest", "id,balance\n1,2.00\n", 201, `"warnings":[]`},
		{"/runs?endpoint=interest", "id,blance\n1,2.00\n", 422,
			lacks + "; nothing reads `blance`. Nothing was stored. Rename it: --rename blance=balance"},
		{"/runs?dry_run=true&endpoint=interest", "id,blance\n1,2.00\n", 422, lacks},
		{"/runs?endpoint=interest&rename=blance%3Dbalance", "id,blance\n1,2.00\n", 201, `"warnings":[]`},
		{"/runs?endpoint=interest", "id,Balance\n1,2.00\n", 422, lacks},
		{"/runs?endpoint=interest&contract=warn", "id,blance\n1,2.00\n", 201, lacks},
		{"/runs?endpoint=interest&contract=off", "id,blance\n1,2.00\n", 201, `"warnings":[]`},
		{"/runs?endpoint=interest&contract=maybe", "id\n1\n", 422, "want reject, warn or off"},
		{"/runs?endpoint=interest", "cust,balance,note,age,id\n1,2,x,9,1\n", 201, "nothing reads `cust`, `age`"},
		{"/runs?endpoint=interest", wide + `,"balance":"2"}`, 201, "`c9`, 240 more"},
		{"/runs?endpoint=interest&order_by=age", "id,balance,age\n1,2,9\n", 201, `"warnings":[]`},
		{"/runs?endpoint=interest", `{"id":"1","balance":"2"}` + "\n" + `{"id":"2"}`, 201,
			"interest requires `balance`, which 1 of the first 2 items lack"},
		{"/runs", multi("{endpoint: interest}, {endpoint: gone, needs: [interest], inputs: [interest]}",
			"id,blance\n1,2"), 422, lacks + "; nothing reads `blance`."},
		{"/runs", multi("{endpoint: interest}, {endpoint: dues}", "id,blance\n1,2"), 422,
			lacks + "; dues requires `balance`, which no row has; nothing reads `blance`. Nothing was stored. Rename it: " +
				"--rename blance=balance"},
		{"/runs", multi("{endpoint: gone}, "+sum, "id,balance\n1,2"), 422,
			without + ". Nothing was stored. Add item to its inputs; or start anyway: --contract warn"},
		{"/runs", multi("{endpoint: interest}, {endpoint: gone}, "+sum, "id,balance\n1,2"), 422, without},
		{"/runs?dry_run=true", multi("{endpoint: gone}, "+sum, "id,balance\n1,2"), 422, without},
		{"/runs", multi("{endpoint: gone}, {name: sum, endpoint: interest, needs: [gone], inputs: [gone, item]}",
			"id,balance\n1,2"), 201, `"run"`},
	} {
		kind := "text/csv"
		if strings.HasPrefix(c.items, "--x") {
			kind = "multipart/form-data; boundary=x"
		}
		items := strings.ReplaceAll(c.items, "\n", "\r\n")
		status, detail, text := b.Asked(c.path, items, "Content-Type", kind)
		if status != c.status || !strings.Contains(string(text)+detail, c.want) {
			t.Errorf("%s %q: %d %s; want %d %q", c.path, c.items, status, text, c.status, c.want)
		}
	}
	b.Open(`{"endpoint":"interest","name":"open"}`)
	b.Want("/runs/open/items", "id,blance\n1,2\n", 422, lacks)
	b.Want("/runs/open/items?contract=warn", "id,blance\n1,2\n", 200, lacks)
	b.Want("/runs/open/items", "id,balance\n2,2\n", 200, `"items":1`)
	b.Want("/runs/open/seal", "", 200)
	b.Want("/runs/open/correct", "id,blance\n2,3\n", 422, lacks)
	b.Want("/runs/open/correct?contract=warn&dry_run=true", "id,blance\n2,3\n", 200, lacks)
	b.Want("/runs/open/correct", "id,balance\n2,3\n", 200, `"warnings":[]`)
	b.Want("/runs/open/items/2/correct", `{"payload":{"id":"2","blance":"3"}}`, 422,
		lacks+"; nothing reads `blance`. Nothing was stored. Rename it: --rename blance=balance")
	b.Want("/runs/open/items/2/correct", `{"payload":{"id":"2","blance":"3"},"contract":"warn","dry_run":true}`, 200,
		lacks)
	b.Want("/runs/open/items/2/correct", `{"payload":{"id":"2","balance":"4"}}`, 200, `"warnings":[]`)
}

// A run that was opened before the service said what it reads continues, with a warning.
func TestStepsWithoutTheItemOfARunningPlan(t *testing.T) {
	t.Parallel()
	e := apitest.SetupEngine(t)
	b := e.Bench
	const plan = `"plan":"steps: [{endpoint: gone}, {name: sum, endpoint: later, needs: [gone], inputs: [gone]}]"`
	const without = "step sum calls later, which requires `id`, `balance`, and its inputs leave the item out"
	b.Open(`{"name":"open",` + plan + `}`)
	serveSavers(t, e, "later")
	b.Want("/runs/open/items", "id\n1\n", 200, without)
	b.Want("/runs/open/seal", "", 200)
	b.Want("/runs/open/correct", "id,x\n1,2\n", 200, without)
	b.Want("/runs/open/items/1/correct", `{"payload":{"id":"1","x":"3"}}`, 200, without)
	b.Want("/runs/open", `{"name":"new",`+plan+`}`, 422, without)
	b.Want("/runs/open", `{"name":"new","contract":"warn",`+plan+`}`, 200, without)
}

// A start that is repeated is answered as before, also when the service requires more by now.
func TestRepeatedStartsAreNotCompared(t *testing.T) {
	t.Parallel()
	e := apitest.SetupEngine(t)
	b := e.Bench
	const path, items = "/runs?endpoint=later&idempotency_key=k", "id\n1\n"
	b.Want(path, items, 201, "no service")
	serveSavers(t, e, "later")
	b.Want(path, items, 200, `"existing":true`)
	b.Want("/runs?endpoint=later", items, 422, "later requires `balance`")
}

// How items are read is said in the query, in settings, in a plan, and for an add.
func TestItemsAreReadAsIsSaid(t *testing.T) {
	t.Parallel()
	latin := "kontonr;saldo;x\n7;12.50;J\xfcrgen\n8;900;\n"
	want := []string{`8 {"id":"8","saldo":900}`, `7 {"id":"7","saldo":12.50}`}
	query := url.Values{"encoding": {"latin1"}, "columns": {"kontonr", "saldo"}, "rename": {"kontonr=id"},
		"types": {"saldo=number"}, "sort": {"saldo"}, "desc": {"true"}}
	const settings = `"encoding":"latin1","columns":["kontonr","saldo"],"rename":["kontonr=id"],` +
		`"types":["saldo=number"],"sort":"saldo","desc":true`
	const plan = "items: {encoding: latin1, columns: [kontonr, saldo], rename: {kontonr: id}, types: {saldo: number}, " +
		"sort: saldo, desc: true}\nsteps: [{endpoint: echo}]\n"
	for name, start := range map[string]func(b *apitest.Bench){
		"query": func(b *apitest.Bench) { b.Want("/runs?endpoint=echo&"+query.Encode(), latin, 201, `"key":"id"`) },
		"settings": func(b *apitest.Bench) {
			status, text := b.StartWith(`{"endpoint":"echo",`+settings+`}`, latin)
			testenv.Same(b, status, 201, "%s", text)
		},
		"plan": func(b *apitest.Bench) {
			b.Want("/plans?name=p", plan, 200)
			b.Want("/runs?plan_ref=p", latin, 201, `"key":"id"`)
		},
		"plan and query": func(b *apitest.Bench) {
			b.Want("/plans?name=p", plan, 200)
			b.Want("/runs?plan_ref=p&desc=false&sort=x&columns=kontonr&columns=saldo&columns=x&rename=kontonr%3Did&rename=x%3Dy",
				latin, 422, `no item has a field \"x\"`)
			b.Want("/runs?plan_ref=p", latin, 201)
		},
		"open": func(b *apitest.Bench) {
			b.Want("/runs/open", `{"endpoint":"echo","name":"o",`+settings+`}`, 200)
			b.Want("/runs/o/items", latin, 200, `"items":2`, `"key":"id"`)
		},
		"add": func(b *apitest.Bench) {
			b.Want("/runs/open", `{"endpoint":"echo","name":"o","sort":"saldo","desc":true}`, 200)
			query := url.Values{"encoding": {"latin1"}, "columns": {"kontonr", "saldo"}, "rename": {"kontonr=id"},
				"types": {"saldo=number"}}
			b.Want("/runs/o/items?"+query.Encode(), latin, 200, `"items":2`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := apitest.Setup(t)
			start(b)
			testenv.SameList(t, b.Payloads(), want, "the items")
		})
	}
}

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
			!strings.Contains(text, " --on-invalid fail") || strings.Count(text, `"location":"items.line"`) != 20 {
			t.Errorf("%s: %d %s", name, status, text)
		}
		testenv.Same(t, b.Number(`SELECT count(*) FROM batchrun`), 0, "%s: runs", name)
		status, text = start("id,balance\nC-1,1\n")
		testenv.Same(t, status, 201, "%s: %s", name, text)
		testenv.Must(b.Pool.Exec(b.Context(), `DELETE FROM batchrun`))(t)
	}
}

func TestOpenRunHoldsItsItemsAgainstItsSchema(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Want("/runs/open", `{"endpoint":"echo","name":"o","schema":`+schemaOfAccounts+`}`, 200)
	b.Want("/runs/o/items", "id,balance\nC-1,1\nC-2,x\n", 422, "one item does not fit the schema", `line 3, key \"C-2\"`)
	b.Want("/runs/o/items", "id,balance\nC-1,1\n", 200, `"items":1`)
	b.Want("/runs/open", `{"endpoint":"echo","name":"p","types":["limit=number"],"sort":"limit"}`, 200)
	b.Want("/runs/p/items", `{"id":"C-1"}`, 200, `"items":1`) // without the field
	b.Want("/runs/p/seal", "", 200)
	b.Want("/runs/p/correct", `{"id":"C-1","n":1}`, 200, `"items":1`)
}
