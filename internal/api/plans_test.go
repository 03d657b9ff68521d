package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/internal/testing/apitest"
)

// A start that is repeated gives the run that is there, whatever has become of its plan, and of this program.
func TestARepeatedStartFindsItsRun(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Apply(apitest.YearEnd, "")
	start := func(code int, query string) (out runs.Started) {
		t.Helper()
		b.JSON(http.MethodPost, "/runs?"+query, apitest.Three, code, &out)
		return out
	}
	first := start(201, "plan_ref=year-end&max_attempts=9&idempotency_key=a")
	b.Apply(strings.Replace(apitest.YearEnd, "100", "200", 1), "")
	again := start(200, "plan_ref=year-end&max_attempts=9&idempotency_key=a")
	if again.Run != first.Run || again.PlanVersion != 1 {
		t.Errorf("of a plan with a new version: %+v; want %+v", again, first)
	}
	start(409, "plan_ref=year-end@2&max_attempts=9&idempotency_key=a")
	start(409, "plan_ref=year-end&max_attempts=8&idempotency_key=a")

}
