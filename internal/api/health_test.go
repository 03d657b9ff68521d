package api_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/admin"
	"github.com/tranchehq/tranche/workqueue/deadletter"
)

// What somebody says of a condition is seen by whoever asks next, and what cannot be said is refused.
func TestWhatIsSaidOfConditions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.bury("lost", deadletter.DeadLetter{Body: []byte(`{}`)})
	for _, r := range []struct {
		path, body string
		status     int
		says       string
	}{
		{"aside", `{"kind":"dead_letters","reason":"known"}`, 422, "for_good"},
		{"aside", `{"kind":"dead_letters","reason":"known","for":"8h","for_good":true}`, 422, "for_good"},
		{"aside", `{"kind":"dead_letters","reason":"known","for":"2s"}`, 422, "8h"},
		{"aside", `{"kind":"dead_letters","for":"8h"}`, 422, "reason"},
		{"aside", `{"kind":"dead_leters","reason":"known","for":"8h"}`, 404, "tranche health"},
		{"take", `{"kind":"dead_letters","subject":"elsewhere"}`, 404, "tranche health"},
	} {
		b.want("/health/"+r.path, r.body, r.status, r.says)
	}
	b.want("/health/aside", `{"kind":"dead_letters","subject":"lost","reason":"known","for":"8h"}`, 200, `"until"`)
	b.told(0, 1)
	b.want("/health/take", `{"kind":"dead_letters"}`, 404, "tranche health") // of all of a kind only those in the open
	b.want("/health/take", `{"kind":"dead_letters","subject":"lost"}`, 200, `"taken"`)
	b.told(1, 0)
	b.want("/health/back", `{"kind":"dead_letters"}`, 200, `"unchanged":false`)
	b.want("/health/back", `{"kind":"dead_letters"}`, 200, `"unchanged":true`)
	b.told(1, 0)
}

// told wants so many dead letters' conditions to be told, and to be put aside.
func (b *bench) told(open, aside int) {
	b.Helper()
	code, text := b.ask(http.MethodGet, api.Prefix+"/health", nil)
	var h admin.Health
	if err := json.Unmarshal(text, &h); err != nil || code != http.StatusOK {
		b.Fatalf("%d %s", code, text)
	}
	var found [2]int
	for i := range h.Conditions {
		if h.Conditions[i].Kind == "dead_letters" {
			found[0]++
		}
	}
	for i := range h.Aside {
		if h.Aside[i].Kind == "dead_letters" {
			found[1]++
		}
	}
	if found != [2]int{open, aside} {
		b.Errorf("%v are told and put aside; want %d and %d: %s", found, open, aside, text)
	}
}
