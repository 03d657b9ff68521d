package api_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/workqueue/deadletter"
)

// What someone says of a condition is seen by whoever asks next, and what cannot be said is refused.
func TestWhatIsSaidOfConditions(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.AddLetter("lost", deadletter.DeadLetter{Body: []byte(`{}`)})
	for _, r := range []struct {
		path, body string
		status     int
		says       string
	}{
		{"mute", `{"kind":"dead_letters","reason":"known"}`, 422, "until_worse"},
		{"mute", `{"kind":"dead_letters","reason":"known","for":"8h","until_worse":true}`, 422, "until_worse"},
		{"mute", `{"kind":"dead_letters","reason":"known","for":"2s"}`, 422, "8h"},
		{"mute", `{"kind":"dead_letters","for":"8h"}`, 422, "reason"},
		{"mute", `{"kind":"dead_leters","reason":"known","for":"8h"}`, 404, "tranche health"},
		{"ack", `{"kind":"dead_letters","subject":"elsewhere"}`, 404, "tranche health"},
	} {
		b.Want("/health/"+r.path, r.body, r.status, r.says)
	}
	b.Want("/health/mute", `{"kind":"dead_letters","subject":"lost","reason":"known","for":"8h"}`, 200, `"until"`)
	b.Told(0, 1)
	b.Want("/health/ack", `{"kind":"dead_letters"}`, 404, "tranche health") // of all of a kind only those in the open
	b.Want("/health/ack", `{"kind":"dead_letters","subject":"lost"}`, 200, `"acknowledged"`)
	b.Told(1, 0)
	b.Want("/health/clear", `{"kind":"dead_letters"}`, 200, `"unchanged":false`)
	b.Want("/health/clear", `{"kind":"dead_letters"}`, 200, `"unchanged":true`)
	b.Told(1, 0)
}
