package runs

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// Limits on a selection of items.
const (
	maxSelection = 16 << 20 // bytes of its JSON
	maxKeys      = 100_000
	maxCodes     = 1000
	maxStepName  = 64
	maxPathBytes = 4000 // of an SQL/JSON path
)

// Chosen selects items. Ranges narrow codes and groups; evidence narrows everything, and may be used alone.
type Chosen struct {
	Keys   Keys          `json:"keys,omitempty" maxItems:"100000" nullable:"false" doc:"these items"`
	Codes  Codes         `json:"codes,omitempty" maxItems:"1000" nullable:"false" doc:"items that failed with such a code"`
	Groups Codes         `json:"groups,omitempty" maxItems:"1000" nullable:"false" doc:"failed with such a message"`
	Ranges OrdinalRanges `json:"ranges,omitempty"`
	Evidence
}

// Keys are item keys.
type Keys []string

// UnmarshalJSONFrom enforces the limit per request.
func (k *Keys) UnmarshalJSONFrom(dec *jsontext.Decoder) (err error) {
	*k, err = apicore.ReadList(dec, maxKeys, func(place, key string) error {
		return apicore.CheckText(place, key, intake.MaxKeyBytes)
	})
	return err
}

// Codes are error codes, or IDs of error groups.
type Codes []string

// UnmarshalJSONFrom enforces the limit per request.
func (c *Codes) UnmarshalJSONFrom(dec *jsontext.Decoder) (err error) {
	*c, err = apicore.ReadList(dec, maxCodes, func(place, code string) error {
		if code == "" {
			return apicore.BadInput(place + " is empty; tranche run errors lists the codes and groups that there are")
		}
		return apicore.CheckText(place, code, apicore.MaxCodeBytes)
	})
	return err
}

// OrdinalRanges are inclusive ranges of ordinals.
type OrdinalRanges [][2]int32

// UnmarshalJSONFrom enforces the limit per request.
func (o *OrdinalRanges) UnmarshalJSONFrom(dec *jsontext.Decoder) (err error) {
	*o, err = apicore.ReadList(dec, redo.MaxRanges, func(place string, ends [2]int32) error {
		if min(ends[0], ends[1]) < 0 {
			return apicore.BadInput(fmt.Sprintf("%s is [%d,%d]; ordinals are whole numbers from 0", place, ends[0], ends[1]))
		}
		return nil
	})
	return err
}

// Schema describes the ranges.
func (OrdinalRanges) Schema(huma.Registry) *huma.Schema {
	most, two, zero := redo.MaxRanges, 2, 0.0
	return &huma.Schema{Type: huma.TypeArray, MaxItems: &most, Examples: []any{[][2]int{{0, 99}}},
		Description: "items by ordinal, both ends included; with failed, codes or groups: only those in both",
		Items: &huma.Schema{Type: huma.TypeArray, MinItems: &two, MaxItems: &two,
			Items: &huma.Schema{Type: huma.TypeInteger, Minimum: &zero}}}
}

// Evidence selects or narrows by facts about items and their results.
type Evidence struct {
	States      Codes      `json:"states,omitempty" maxItems:"2" nullable:"false" doc:"done or failed, at the step"`
	Service     string     `json:"service,omitempty" doc:"by this service: name, name@version, or with the instance" example:"statements@2.1.0"`
	Since       *time.Time `json:"since,omitempty" doc:"recorded then or later"`
	Until       *time.Time `json:"until,omitempty" doc:"recorded before"`
	Where       string     `json:"where,omitempty" doc:"a SQL/JSON path that the payload matches" example:"$.branch == \"12\""`
	WhereResult string     `json:"where_result,omitempty" doc:"a SQL/JSON path that the result matches"`
	Corrected   bool       `json:"corrected,omitempty" doc:"only items whose payload was corrected"`
}

const evidenceMembers = "states, service, since, until, where, where_result, corrected"

func (e *Evidence) given() bool {
	return len(e.States) > 0 || e.Service+e.Where+e.WhereResult != "" || e.Since != nil || e.Until != nil || e.Corrected
}

// check requires exactly one selection. ways lists the ways that only some operations have, and keys.
func (c *Chosen) check(ways string, all, failed bool) error {
	err := cmp.Or(apicore.CheckText("service", c.Service, 2*apicore.MaxCodeBytes),
		apicore.CheckText("where", c.Where, maxPathBytes), apicore.CheckText("where_result", c.WhereResult, maxPathBytes))
	for _, at := range []*time.Time{c.Since, c.Until} {
		if at != nil && at.IsZero() {
			err = cmp.Or(err, apicore.BadInput("since and until: 0001-01-01T00:00:00Z is too long ago; leave it out"))
		}
	}
	narrowed := failed || len(c.Codes) > 0 || len(c.Groups) > 0
	used := []bool{all, failed, len(c.Keys) > 0, len(c.Codes) > 0, len(c.Groups) > 0, len(c.Ranges) > 0 && !narrowed}
	if err != nil || c.given() && !slices.Contains(used, true) {
		return err
	}
	return apicore.ChooseOne(ways+", codes, groups and ranges, or evidence: "+evidenceMembers, used...)
}

func (c *Chosen) selection(step string) redo.Selection {
	out := redo.Selection{Step: step, Keys: c.Keys, Codes: c.Codes, Groups: c.Groups, Evidence: redo.Evidence{
		Service: c.Service, Where: c.Where, WhereResult: c.WhereResult, Corrected: c.Corrected}}
	for _, r := range c.Ranges {
		out.Ranges = append(out.Ranges, redo.Range{From: workqueue.Ordinal(r[0]), To: workqueue.Ordinal(r[1])})
	}
	for _, s := range c.States {
		out.Evidence.States = append(out.Evidence.States, workqueue.Outcome(s))
	}
	if c.Since != nil {
		out.Evidence.Since = *c.Since
	}
	if c.Until != nil {
		out.Evidence.Until = *c.Until
	}
	return out
}

// EvidenceQuery is a selection in a query string.
type EvidenceQuery struct {
	Keys        []string  `query:"key,explode" doc:"only items with this key; repeatable"`
	Codes       []string  `query:"code,explode" doc:"only items that failed with this code; repeatable"`
	Groups      []string  `query:"group,explode" doc:"only items that failed with a message of this group; repeatable"`
	Service     string    `query:"service" doc:"only outcomes of this service: name, name@version, or with the instance"`
	Since       time.Time `query:"since" doc:"only outcomes recorded then or later"`
	Until       time.Time `query:"until" doc:"only outcomes recorded before"`
	Where       string    `query:"where" maxLength:"4000" doc:"only items whose payload matches this SQL/JSON path"`
	WhereResult string    `query:"where_result" maxLength:"4000" doc:"only items whose result matches this SQL/JSON path"`
	Corrected   bool      `query:"corrected" doc:"only items whose payload was corrected"`
}

// Resolve refuses the zero time, which would mean none, and texts that the database cannot hold.
func (q *EvidenceQuery) Resolve(ctx huma.Context) []error {
	problems := apicore.ZeroTimes(ctx, "since", "until")
	for field, values := range map[string][]string{
		"key": q.Keys, "code": q.Codes, "group": q.Groups, "service": {q.Service}, "where": {q.Where},
		"where_result": {q.WhereResult},
	} {
		for _, value := range values {
			if err := apicore.CheckText(field, value, math.MaxInt); err != nil {
				problems = append(problems, err)
			}
		}
	}
	return problems
}

// Selection converts it for the store.
func (q *EvidenceQuery) Selection() redo.Selection {
	return redo.Selection{Keys: q.Keys, Codes: q.Codes, Groups: q.Groups, Evidence: redo.Evidence{Service: q.Service,
		Since: q.Since, Until: q.Until, Where: q.Where, WhereResult: q.WhereResult, Corrected: q.Corrected}}
}
