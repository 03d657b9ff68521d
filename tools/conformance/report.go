package conformance

import (
	"slices"
	"time"
)

// Outcome is what came of a check.
type Outcome string

// The outcomes.
const (
	Passed  Outcome = "ok"
	Failed  Outcome = "FAIL"
	LeftOut Outcome = "left out"
)

// Result is what came of one check.
type Result struct {
	Check   string  `json:"check"`
	About   string  `json:"about"`
	Section string  `json:"section"` // of docs/protocol.md
	Level   Level   `json:"level"`
	Outcome Outcome `json:"outcome"`
	// Expected, Got and Notice are set on a failure, Reason when the check was left out.
	Expected string        `json:"expected,omitempty"`
	Got      string        `json:"got,omitempty"`
	Notice   string        `json:"notice,omitempty"` // what users notice
	Reason   string        `json:"reason,omitempty"`
	Took     time.Duration `json:"took_ns"`
}

// Report is what came of a whole Run.
type Report struct {
	Endpoint string   `json:"endpoint"`
	Contract bool     `json:"contract"` // whether the endpoint is a conformance endpoint
	Results  []Result `json:"results"`
	// Output is the end of what the service's command wrote. It is set when a check failed.
	Output string `json:"output,omitempty"`
}

// Wanting returns how many checks failed that are of the level, or of one before it.
func (r *Report) Wanting(level Level) int {
	n := 0
	for _, result := range r.Results {
		if result.Outcome == Failed && slices.Index(levels(), result.Level) <= slices.Index(levels(), level) {
			n++
		}
	}
	return n
}

// Count returns how many checks had the outcome.
func (r *Report) Count(outcome Outcome) int {
	n := 0
	for _, result := range r.Results {
		if result.Outcome == outcome {
			n++
		}
	}
	return n
}
