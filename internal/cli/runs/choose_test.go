package runs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// Keys for several requests are one choice: beside evidence, some of the requests may find nothing.
func TestManyKeysBesideEvidence(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "keys")
	var text strings.Builder
	for i := range 3*cli.MaxKeysOfRequest + 1 {
		fmt.Fprintf(&text, "C-%d\n", i)
	}
	if err := os.WriteFile(name, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name    string
		found   map[string]int // by the first key of the requests that find something
		dry     bool
		fail    string // the request that is refused for another reason
		done    int
		changed []string // the requests that change something
		want    string
	}{
		{name: "first and last", found: map[string]int{"C-0": 7, "C-300000": 1}, done: 8,
			changed: []string{"C-0", "C-300000"}},
		{name: "dry", found: map[string]int{"C-100000": 3, "C-200000": 4}, dry: true, done: 7},
		{name: "none", want: "true of nothing"},
		{name: "unknown keys", found: map[string]int{"C-0": 7}, fail: "C-100000", want: "unknown key"},
	} {
		var changed []string
		r := &redoing[int]{
			chosen: &chosen{itemChoice: itemChoice{Keys: name}, evidence: evidence{Service: "statements"}},
			dry:    tc.dry, did: "done",
			ask: func(_ context.Context, keys []string, dry bool, _ ...client.CallOption) (int, error) {
				problem := func(status int, detail string) error {
					return &client.ProblemError{Problem: client.Problem{Status: status, Detail: detail}}
				}
				switch n := tc.found[keys[0]]; {
				case keys[0] == tc.fail:
					return 0, problem(http.StatusUnprocessableEntity, "unknown key")
				case n == 0:
					return 0, problem(http.StatusConflict, "the evidence is true of nothing")
				default:
					if !dry {
						changed = append(changed, keys[0])
					}
					return n, nil
				}
			},
			add:   func(sum, one *int) int { return *sum + *one },
			items: func(n *int) int64 { return int64(*n) },
		}
		done, err := r.do(t.Context(), &cli.Console{})
		refused, _ := errors.AsType[*client.ProblemError](err)
		if (tc.want == "") != (err == nil) || err != nil && !strings.Contains(refused.Detail, tc.want) {
			t.Errorf("%s: %v; want %q", tc.name, err, tc.want)
		}
		if err == nil && done != tc.done || !slices.Equal(changed, tc.changed) {
			t.Errorf("%s: %d, by requests from %v; want %d, %v", tc.name, done, changed, tc.done, tc.changed)
		}
	}
}
