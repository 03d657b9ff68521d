package runs

import (
	"fmt"
	"time"

	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// maxPathBytes bounds a path of SQL/JSON.
const maxPathBytes = 4000

// Evidence narrows what is chosen by what is known of items and of what was made of them; it may also stand alone.
type Evidence struct {
	States      []string   `json:"states,omitempty" maxItems:"2" nullable:"false" doc:"done or failed, at the step"`
	Service     string     `json:"service,omitempty" doc:"who made it: name, name@version, or with the instance" example:"statements@2.1.0"` //nolint:lll // a tag
	Since       *time.Time `json:"since,omitempty" doc:"recorded then or later"`
	Until       *time.Time `json:"until,omitempty" doc:"recorded before"`
	Where       string     `json:"where,omitempty" doc:"a path of SQL/JSON that holds for the payload" example:"$.branch == \"12\""` //nolint:lll // a tag
	WhereResult string     `json:"where_result,omitempty" doc:"or for the result"`
	Corrected   bool       `json:"corrected,omitempty" doc:"only items whose payload was corrected"`
}

const evidenceMembers = "states, service, since, until, where, where_result, corrected"

func (e *Evidence) given() bool {
	return len(e.States) > 0 || e.Service+e.Where+e.WhereResult != "" || e.Since != nil || e.Until != nil || e.Corrected
}

// evidence is the same as the store takes it.
func (e *Evidence) evidence() redo.Evidence {
	out := redo.Evidence{Service: e.Service, Where: e.Where, WhereResult: e.WhereResult, Corrected: e.Corrected}
	for _, s := range e.States {
		out.States = append(out.States, workqueue.Outcome(s))
	}
	if e.Since != nil {
		out.Since = *e.Since
	}
	if e.Until != nil {
		out.Until = *e.Until
	}
	return out
}

// evidence are the members of it in a body.
func (r *bodyReader) evidence(to *Evidence) []member {
	return []member{
		{"states", into(&to.States, r.codes)},
		{"service", into(&to.Service, r.text(kernel.MaxCodeBytes*2))},
		{"since", into(&to.Since, r.time)},
		{"until", into(&to.Until, r.time)},
		{"where", into(&to.Where, r.text(maxPathBytes))},
		{"where_result", into(&to.WhereResult, r.text(maxPathBytes))},
		{"corrected", into(&to.Corrected, r.boolean)},
	}
}

func (r *bodyReader) time(field string) (*time.Time, error) {
	text, err := r.text(maxStepName)(field)
	if err != nil {
		return nil, err
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return nil, kernel.BadInput(fmt.Sprintf("%s is %q; give a time as in RFC 3339, like 2026-11-24T20:15:00Z", field,
			kernel.Cut(text, kernel.MaxEchoed)))
	}
	return &at, nil
}

// EvidenceQuery is what chooses items in a query.
type EvidenceQuery struct {
	Keys        []string  `query:"key,explode" doc:"only items with this key; may stand more than once"`
	Codes       []string  `query:"code,explode" doc:"only items that failed with this code; may stand more than once"`
	Groups      []string  `query:"group,explode" doc:"only items that failed with a message of this group; may stand more than once"` //nolint:lll // a tag
	Service     string    `query:"service" doc:"only what it made: name, name@version, or with the instance"`
	Since       time.Time `query:"since" doc:"only what was recorded then or later"`
	Until       time.Time `query:"until" doc:"only what was recorded before"`
	Where       string    `query:"where" maxLength:"4000" doc:"only items for whose payload a path of SQL/JSON holds"`
	WhereResult string    `query:"where_result" maxLength:"4000" doc:"or for whose result"`
	Corrected   bool      `query:"corrected" doc:"only items whose payload was corrected"`
}

// Selection is the same as the store takes it.
func (q *EvidenceQuery) Selection() redo.Selection {
	return redo.Selection{Keys: q.Keys, Codes: q.Codes, Groups: q.Groups, Evidence: redo.Evidence{Service: q.Service,
		Since: q.Since, Until: q.Until, Where: q.Where, WhereResult: q.WhereResult, Corrected: q.Corrected}}
}
