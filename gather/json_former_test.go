package gather_test

import (
	"testing"

	"github.com/tranchehq/tranche/gather"
)

func TestFormerJSON(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"priority: 5\nsteps: [{endpoint: e}]": `{"name":"p","steps":[{"name":"e","endpoint":"e","chunk":500,"in_flight":64,` +
			`"max_attempts":3,"timeout":"12m0s","retry_backoff":"1s"}]}`,
		"steps: [{endpoint: e, in_flight: 7, retry_backoff: 10m}]": `{"name":"p","steps":[{"name":"e","endpoint":"e",` +
			`"chunk":500,"in_flight":7,"max_attempts":3,"timeout":"12m0s","retry_backoff":"10m0s"}]}`,
		"max_failed: 1%\nsteps: [{endpoint: e}]":    "",
		"canary: 1\nsteps: [{endpoint: e}]":         "",
		"steps: [{endpoint: e, chunk: auto}]":       "",
		"steps: [{endpoint: e, rate: 5}]":           "",
		"steps: [{endpoint: e, retry_codes: [A]}]":  "",
		"steps: [{endpoint: e, max_backoff: 1m}]":   "",
		"steps: [{endpoint: e, chunk_bytes: 1KiB}]": "",
		"steps: [{endpoint: e, inputs: [item]}]":    "",
		"steps: [{request: e}]":                     "",
	} {
		plan, err := gather.Parse("p", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := plan.FormerJSON(); string(got) != want || ok != (want != "") {
			t.Errorf("%s\ngot  %s, %v\nwant %s", text, got, ok, want)
		}
	}
}
