package runs_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

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
