package runs_test

import (
	"crypto/sha256"
	"fmt"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/apitest"
)

// Which codes are retried can be changed while a run goes on.
func TestCodesOfARunAreSet(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("name=c&retry_codes=A")
	set := func(status int, want, body string) {
		t.Helper()
		b.Sent(status, false, want, fmt.Sprintf("%x", sha256.Sum256([]byte(body))), "/runs/c/settings", body,
			"Content-Type", "application/json")
	}
	set(200, `"after":{"retry_codes":"B, C.D"}`, `{"retry_codes":["B","C.D"]}`)
	set(200, `"before":{"retry_codes":"B, C.D"}`, `{"retry_codes":["none"]}`)
	set(200, `"after":{"no_retry_codes":"B"}`, `{"no_retry_codes":["B"],"retry_codes":[]}`)
	set(422, `code \"B\" would stand in retry_codes and in no_retry_codes`, `{"retry_codes":["B"]}`)
	set(422, "stands twice", `{"retry_codes":["A","A"]}`)
	set(422, "a b", `{"no_retry_codes":["a b"]}`)
	var codes string
	err := b.Pool.QueryRow(t.Context(), `SELECT retry_codes::text || no_retry_codes::text FROM run_step`).Scan(&codes)
	if err != nil || codes != "{}{B}" {
		t.Errorf("the step has the codes %s, %v", codes, err)
	}
}
