package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// RerunSettings selects items to rerun by exactly one of Failed, Keys, Codes, Groups and Ranges. Ranges also narrow
// Failed, Codes or Groups; evidence narrows everything, and may be used alone. As JSON it is limited to 16 MiB.
type RerunSettings struct {
	Step   string `json:"step,omitempty" maxLength:"64" doc:"of this step; absent: what failed at any step"`
	Failed bool   `json:"failed,omitempty" doc:"all items that failed"`

	FailedAt string `json:"failed_at,omitempty" maxLength:"64" doc:"with codes or groups: failed at this step"`
	Chosen

	Chunk             Sizing `json:"chunk,omitzero" doc:"new size of slices, 1 to 8192, or auto; 0 keeps it"`
	InFlight          Sizing `json:"in_flight,omitzero" doc:"new limit of slices, 1 to 10000, or auto; 0 keeps it"`
	Endpoint          string `json:"endpoint,omitempty" maxLength:"64" doc:"where later requests go; absent: as before"`
	Canary            int    `json:"canary,omitempty" minimum:"0" doc:"items of a spread sample that run first; 0: none"`
	CanaryAutoApprove bool   `json:"canary_auto_approve,omitempty" doc:"a sample within max_failed releases the rest"`
	DryRun            bool   `json:"dry_run,omitempty" doc:"change nothing; show what would be done"`
	Reason            string `json:"reason,omitempty" maxLength:"500" doc:"why, for the audit log"`
}

// Rerun is the result of a rerun, also of a dry run.
type Rerun struct {
	Run    workqueue.RunID `json:"run"`
	DryRun bool            `json:"dry_run" doc:"nothing was changed"`
	redo.Rerun
	Paused   string   `json:"paused,omitempty" doc:"why the run is paused, and stays so"`
	Warnings []string `json:"warnings"`
}

type changes struct{ *Starts }

func (s changes) register(api huma.API) {
	apicore.Register(s.Core, api, apicore.ReadsJSON[RerunSettings](api, apicore.Post("rerun", "/runs/{run}/rerun",
		"Rerun items", "The body is 16 MiB at most; more keys go in several requests."), maxSelection), s.rerun)
	apicore.Register(s.Core, api, apicore.ReadsJSON[ResetSettings](api, apicore.Post("reset", "/runs/{run}/reset",
		"Discard a step's results and recompute them",
		"The body is 16 MiB at most; more keys go in several requests."), maxSelection), s.reset)
	apicore.Register(s.Core, api, apicore.ReadsJSON[AcceptSettings](api, apicore.Post("accept", "/runs/{run}/accept",
		"Accept failures",
		"They stay failed and are shown as accepted, and health ignores them. Items that are rerun "+
			"or reset are no longer accepted. The body is 16 MiB at most; send more keys in several requests."), maxSelection),
		s.accept)
	apicore.Register(s.Core, api, apicore.Streamed(apicore.Post("correct", "/runs/{run}/correct",
		"Correct the data of items", correctDescription), apicore.Files(itemTypes()...)), s.correct)
	apicore.Register(s.Core, api, apicore.Post("correct-item", "/runs/{run}/items/{key}/correct",
		"Correct the data of one item", "Like correct, for one item: the body is its payload."), s.correctItem)
	apicore.Register(s.Core, api, apicore.Post("set-run", "/runs/{run}/settings",
		"Change settings of a run", ""), s.setRun)
	apicore.Register(s.Core, api, apicore.FourEyes("delete", apicore.ByAdmin(apicore.Post("delete-run",
		"/runs/{run}/delete", "Delete a finished run",
		"It disappears from all lists; its ID answers 410. The leader "+
			"deletes its rows in small pieces, for which the answer does not wait. A run that is in progress, or ended "+
			"less than a minute ago, is refused."))), s.deleteRun)
	s.registerControl(api)
}

type selectInput[T any] struct {
	apicore.RunPath
	apicore.Changer
	apicore.JSON[T]
}

func (s changes) rerun(ctx context.Context, in *selectInput[RerunSettings]) (Rerun, error) {
	set := in.Sent()
	if err := set.check(); err != nil {
		return Rerun{}, err
	}
	done, err := s.config.Engine.Rerun(ctx, set.request(in.ID, in.Name))
	if err != nil {
		return Rerun{}, unchanged(err, "tranche run show "+in.ID.String())
	}
	return Rerun{in.ID, set.DryRun, done, pausedText(done.Hold, done.HoldDetail), s.warningsOf(ctx, in.ID)}, nil
}

func (set *RerunSettings) check() error {
	sized := func(field string, size Sizing, most int) error {
		if size.Value < 0 || size.Value > most {
			return apicore.BadInput(fmt.Sprintf("%s is %d; it must be auto, or a whole number from 0, which keeps it, to %d",
				field, size.Value, most))
		}
		return nil
	}
	if set.Canary < 0 {
		return apicore.BadInput(fmt.Sprintf("canary is %d; it must be a whole number from 0, which is none", set.Canary))
	}
	if set.Endpoint != "" {
		if err := apicore.CheckEndpoint(set.Endpoint); err != nil {
			return err
		}
	}
	return cmp.Or(set.Chosen.check("failed, keys", false, set.Failed), apicore.CheckText("step", set.Step, maxStepName),
		apicore.CheckText("failed_at", set.FailedAt, maxStepName), sized("chunk", set.Chunk, bitfield.Size),
		sized("in_flight", set.InFlight, workqueue.MaxInFlight),
		apicore.CheckText("reason", set.Reason, apicore.MaxReasonBytes))
}

func (set *RerunSettings) request(run workqueue.RunID, actor string) redo.RerunRequest {
	req := redo.RerunRequest{Run: run, Actor: actor, Reason: set.Reason, Canary: set.Canary,
		CanaryAutoApprove: set.CanaryAutoApprove, DryRun: set.DryRun, Select: set.selection(set.Step)}
	req.Select.Failed, req.Select.At = set.Failed, set.FailedAt
	req.Settings.Chunk, req.Settings.InFlight = set.Chunk.given(), set.InFlight.given()
	req.Settings.Endpoint = set.Endpoint
	return req
}

// unchanged adds to an error where to look for what was not found and, for unknown keys, that nothing was changed.
func unchanged(err error, see string) error {
	if _, ok := errors.AsType[*redo.UnknownKeysError](err); ok {
		err = fmt.Errorf("%w; nothing was changed", err)
	}
	return apicore.Seen(err, see)
}

// ResetSettings selects items whose results of a step are discarded, by exactly one of All, Keys, Codes, Groups and
// Ranges. Ranges also narrow Codes and Groups; evidence narrows everything, and may be used alone. As JSON it is
// limited to 16 MiB.
type ResetSettings struct {
	Step string `json:"step,omitempty" maxLength:"64" doc:"the step; may be absent where there is only one"`
	All  bool   `json:"all,omitempty" doc:"all items"`

	FailedAt string `json:"failed_at,omitempty" maxLength:"64" doc:"with codes or groups: failed at this step"`
	Chosen

	Cascade bool   `json:"cascade,omitempty" doc:"redo the dependent steps in any case, not only where a part changes"`
	DryRun  bool   `json:"dry_run,omitempty" doc:"change nothing; show what would be done"`
	Reason  string `json:"reason,omitempty" maxLength:"500" doc:"why, for the audit log"`
}

// Reset is the result of a reset, also of a dry run.
type Reset struct {
	Run     workqueue.RunID `json:"run"`
	DryRun  bool            `json:"dry_run" doc:"nothing was changed"`
	Cascade bool            `json:"cascade"`
	redo.Reset
	Paused   string   `json:"paused,omitempty" doc:"why the run is paused, and stays so"`
	Warnings []string `json:"warnings"`
}

func (s changes) reset(ctx context.Context, in *selectInput[ResetSettings]) (Reset, error) {
	set := in.Sent()
	err := cmp.Or(set.Chosen.check("all, keys", set.All, false), apicore.CheckText("step", set.Step, maxStepName),
		apicore.CheckText("failed_at", set.FailedAt, maxStepName),
		apicore.CheckText("reason", set.Reason, apicore.MaxReasonBytes))
	if err != nil {
		return Reset{}, err
	}
	choice := set.selection(set.Step)
	choice.All, choice.At = set.All, set.FailedAt
	done, err := s.config.Engine.Reset(ctx, redo.ResetRequest{Run: in.ID, Actor: in.Name, Reason: set.Reason,
		Cascade: set.Cascade, DryRun: set.DryRun, Select: choice})
	if err != nil {
		return Reset{}, unchanged(err, "tranche run show "+in.ID.String())
	}
	done.Notes = append([]string{}, done.Notes...) // never nil
	return Reset{in.ID, set.DryRun, set.Cascade, done, pausedText(done.Hold, done.HoldDetail),
		s.warningsOf(ctx, in.ID)}, nil
}

// AcceptSettings selects failures to accept by exactly one of Failed, Keys, Codes, Groups and Ranges. Ranges also
// narrow Failed, Codes or Groups; evidence narrows everything, and may be used alone. As JSON it is limited to 16
// MiB.
type AcceptSettings struct {
	Step   string `json:"step,omitempty" maxLength:"64" doc:"failures of this step; absent: of every step"`
	Failed bool   `json:"failed,omitempty" doc:"all items that failed"`
	Chosen

	Withdraw bool   `json:"withdraw,omitempty" doc:"withdraw their acceptance"`
	DryRun   bool   `json:"dry_run,omitempty" doc:"change nothing; show what would be done"`
	Reason   string `json:"reason,omitempty" maxLength:"500" doc:"why; required unless it withdraws"`
}

// Accepted is the result of accepting or withdrawing, also of a dry run.
type Accepted struct {
	Run      workqueue.RunID `json:"run"`
	DryRun   bool            `json:"dry_run" doc:"nothing was changed"`
	Withdraw bool            `json:"withdraw" doc:"they are no longer accepted"`
	redo.Acceptance
}

func (s changes) accept(ctx context.Context, in *selectInput[AcceptSettings]) (Accepted, error) {
	set := in.Sent()
	err := cmp.Or(set.Chosen.check("failed, keys", false, set.Failed),
		apicore.CheckText("step", set.Step, maxStepName),
		apicore.CheckText("reason", set.Reason, apicore.MaxReasonBytes))
	if err != nil {
		return Accepted{}, err
	}
	choice := set.selection(set.Step)
	choice.Failed = set.Failed
	done, err := redo.New(s.Store).Accept(ctx, redo.AcceptRequest{Run: in.ID, Withdraw: set.Withdraw, DryRun: set.DryRun,
		Reason: set.Reason, Actor: in.Name, Select: choice})
	if err != nil {
		return Accepted{}, unchanged(err, "tranche run errors "+in.ID.String())
	}
	return Accepted{in.ID, set.DryRun, set.Withdraw, done}, nil
}

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
	Since       *time.Time `json:"since,omitempty" doc:"from requests that ended then or later; in flight: were sent"`
	Until       *time.Time `json:"until,omitempty" doc:"from requests that ended before"`
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
	Since       time.Time `query:"since" doc:"only outcomes of requests that ended then or later; in flight: were sent"`
	Until       time.Time `query:"until" doc:"only outcomes of requests that ended before"`
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
