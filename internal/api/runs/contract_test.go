package runs_test

import (
	"context"
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

// A column that is misspelt would be zero to the service. The start says so instead, and so do its dry run and an add.
func TestItemsAreComparedWithWhatServicesRead(t *testing.T) {
	t.Parallel()
	e := apitest.SetupEngine(t)
	b := e.Bench
	serveSavers(t, e, "interest")
	serveSavers(t, e, "dues")
	const lacks = "interest requires `balance`, which no row has"
	const sum = "{name: sum, endpoint: interest, needs: [gone], inputs: [gone]}"
	const without = "step sum calls interest, which requires `id`, `balance`, and its inputs leave the item out"
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

// A run that was opened before the service said what it reads goes on, with a warning.
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
