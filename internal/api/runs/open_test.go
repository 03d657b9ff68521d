package runs_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestOpenAddAndSeal(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	run := b.Open(`{"endpoint":"echo","name":"it","seal_within":"6h"}`)
	if run.Run.String() == "" || run.SealDeadline.IsZero() || run.Existing || run.Plan != "echo" {
		t.Errorf("opened: %+v", run)
	}
	b.Want("/runs/it/items?idempotency_key=a", apitest.Three, 200, `"items":3`, `"first":0`, `"total":3`,
		`"existing":false`)
	b.Want("/runs/it/items?idempotency_key=a", apitest.Three, 200, `"items":3`, `"total":3`, `"existing":true`)
	b.Want("/runs/it/items?idempotency_key=a", apitest.Three+"9\n", 409, "idempotency key")
	b.Want("/runs/it/items", "id\n7\n8\n7\n", 422, `line 4: key \"7\" is on line 2`)
	b.Want("/runs/it/items", "id\n7\n2\n", 422, `line 3: key \"2\" is the key of item 2 already`)
	b.Want("/runs/it/items", `{"id":"7"}`+"\n", 200, `"first":3`)
	b.Want("/runs/it/items", "", 422, "empty")
	b.Want("/runs/it/seal", `{"expect":3}`, 409, "has 4 items, and 3 were expected")
	b.Want("/runs/it/seal", `{"expect":4}`, 200, `"items":4`, `"already":false`)
	b.Want("/runs/it/seal", ``, 200, `"already":true`)
	b.Want("/runs/it/items", "id\n9\n", 409, "sealed")
	b.Finish(run.Run)
	b.Want("/runs/it/seal", ``, 200, `"already":true`)
	b.Start("name=whole")
	b.Want("/runs/whole/items", "id\n9\n", 409, "started with all its items")
}

func TestOpeningIsRefused(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	for body, want := range map[string]string{
		``:                                      "the body is empty",
		`[]`:                                    "a JSON object",
		`{"endpoint":"e"} {}`:                   "after top-level value",
		`{"endpoint":"e","x":1}`:                `unknown member \"x\"`,
		`{"name":"e"}`:                          "either an endpoint or a plan",
		`{"endpoint":"e","seal_within":"soon"}`: "seal_within",
		`{"endpoint":"e","seal_within":"-1h"}`:  "seal_within",
		`{"endpoint":"e","on_overdue":"shrug"}`: "on overdue",
		`{"endpoint":"e","canary":5}`:           "canary",
		`{"endpoint":"e","key":"id"}`:           "key",
		`{"endpoint":"e","sql":"SELECT 1","sql_source":"x"}`: "sql",
	} {
		b.Want("/runs/open", body, 422, want)
	}
	testenv.Same(t, b.Number(`SELECT count(*) FROM batchrun`), 0, "runs were opened")
}
