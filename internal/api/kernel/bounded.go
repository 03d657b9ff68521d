package kernel

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/access"
)

// Bounds of what an answer that says no repeats of what was sent.
const (
	MaxEchoed  = 100  // characters of one value
	maxDetail  = 2000 // characters of a detail or message
	maxDetails = 20   // places that are pointed at
)

// bounded cuts what a problem repeats of the request: an answer does not grow with it. Secrets are not repeated.
func bounded(p *huma.ErrorModel) *huma.ErrorModel {
	p.Detail = Cut(access.Redact(p.Detail), maxDetail)
	if more := len(p.Errors) - maxDetails; more > 0 {
		p.Errors = append(p.Errors[:maxDetails:maxDetails], &huma.ErrorDetail{Message: fmt.Sprintf("and %d more", more)})
	}
	for _, e := range p.Errors {
		e.Message, e.Location = Cut(access.Redact(e.Message), maxDetail), Cut(access.Redact(e.Location), 2*MaxEchoed)
		e.Value = echo(e.Value)
	}
	return p
}

// BoundProblems is bounded for the problems that huma writes.
func BoundProblems(_ huma.Context, _ string, v any) (any, error) {
	if p, ok := v.(*huma.ErrorModel); ok {
		return bounded(p), nil
	}
	return v, nil
}

// echo returns a value as it may be repeated: itself when it is short, else the beginning of its JSON.
func echo(value any) any {
	switch v := value.(type) {
	case nil, bool, int, int64, float64:
		return v
	case string:
		return Cut(access.Redact(v), MaxEchoed)
	}
	text, err := json.Marshal(value)
	if err == nil && strings.Contains(string(text), access.Prefix) {
		return Cut(access.Redact(string(text)), MaxEchoed)
	}
	if err != nil || len(text) <= MaxEchoed {
		return value
	}
	return Cut(string(text), MaxEchoed)
}

// Cut shortens a text to so many characters, the last of which is then an ellipsis.
func Cut(s string, limit int) string {
	count, end := 0, 0
	for i := range s {
		if count++; count == limit {
			end = i
		}
		if count > limit {
			return s[:end] + "…"
		}
	}
	return s
}

// CheckText refuses what PostgreSQL cannot store as text, and what is longer than a field holds.
func CheckText(field, value string, most int) error {
	const fix = "; leave that out"
	switch {
	case !utf8.ValidString(value):
		return BadInput(fmt.Sprintf("%s is not valid UTF-8: %q%s", field, Cut(value, MaxEchoed), fix))
	case strings.IndexByte(value, 0) >= 0:
		return BadInput(fmt.Sprintf("%s holds a NUL, which PostgreSQL cannot store: %q%s", field, Cut(value, MaxEchoed),
			fix))
	case len(value) > most:
		return BadInput(fmt.Sprintf("%s has %d bytes, and at most %d are allowed; shorten it", field, len(value), most))
	default:
		return nil
	}
}
