package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// RerunSettings says which items to run again, by one of Failed, Keys, Codes, Groups and Ranges, and how.
// Beside Failed, Codes or Groups, Ranges narrow them; evidence narrows all, and may stand alone. As JSON it
// takes 16 MiB at most.
type RerunSettings struct {
	Step   string   `json:"step,omitempty" maxLength:"64" doc:"of this step; absent: what failed at any step"`
	Failed bool     `json:"failed,omitempty" doc:"all items that failed"`
	Keys   []string `json:"keys,omitempty" maxItems:"100000" nullable:"false" doc:"these items, failed or done"`
	Codes  []string `json:"codes,omitempty" maxItems:"1000" nullable:"false" doc:"items that failed with such a code"`
	Groups []string `json:"groups,omitempty" maxItems:"1000" nullable:"false" doc:"items that failed with such a message"`

	FailedAt string `json:"failed_at,omitempty" maxLength:"64" doc:"with codes or groups: failed at this step"`

	Ranges OrdinalRanges `json:"ranges,omitempty"`
	Evidence

	Chunk      Sizing `json:"chunk,omitzero" doc:"new size of slices, 1 to 8192, or auto; 0 keeps it"`
	InFlight   Sizing `json:"in_flight,omitzero" doc:"new limit of slices, 1 to 10000, or auto; 0 keeps it"`
	Endpoint   string `json:"endpoint,omitempty" maxLength:"64" doc:"where requests go from now on; absent: as before"`
	Canary     int    `json:"canary,omitempty" minimum:"0" doc:"items of a spread sample that run first; 0: none"`
	CanaryAuto bool   `json:"canary_auto,omitempty" doc:"a sample within max_failed lets the others go"`
	DryRun     bool   `json:"dry_run,omitempty" doc:"change nothing, and say what would be done"`
	Reason     string `json:"reason,omitempty" maxLength:"500" doc:"why, for the audit log"`
}

// Rerun is a re-run that was set going, or would be.
type Rerun struct {
	Run        workqueue.RunID      `json:"run"`
	Step       string               `json:"step" doc:"empty: several"`
	DryRun     bool                 `json:"dry_run" doc:"nothing was changed"`
	Items      int64                `json:"items"`
	Held       int64                `json:"held" doc:"of the items, those that wait for the canary"`
	Slices     int64                `json:"slices" doc:"by the chunk of the moment; more for large payloads"`
	Blocks     int                  `json:"blocks"`
	Examples   []string             `json:"examples" nullable:"false" doc:"the first ten keys"`
	Generation workqueue.Generation `json:"generation"`
	Paused     string               `json:"paused,omitempty" doc:"why the run is paused, and stays so"`
	Warnings   []string             `json:"warnings"`

	Steps []redo.StepReset `json:"steps,omitempty" doc:"of a run of several steps, what becomes of them"`
}

// changes change runs that there are.
type changes struct{ *Starts }

func (s changes) register(api huma.API) {
	kernel.Register(s.Kernel, api, kernel.Streamed(kernel.ByOperator(huma.Operation{
		OperationID: "rerun", Method: http.MethodPost, Path: "/runs/{run}/rerun", Summary: "Run items again",
		Description: "The body is 16 MiB at most; more keys go in several requests.",
	})), s.rerun)
	describeBody[RerunSettings](api, "/runs/{run}/rerun")
	s.registerReset(api)
	(&acceptances{s.Store, s.MayChange}).register(s.Kernel, api)
	(&corrections{s}).register(api)
	(&deletions{s.Store, s.MayChange, func() { s.Wake(orchestrator.DutyRetention) }}).register(s.Kernel, api)
	s.registerControl(api)
	s.registerSet(api)
}

// describeBody only describes the body of an operation: if it had one, huma would hold all of it in memory, several
// times.
func describeBody[T any](api huma.API, path string) {
	api.OpenAPI().Paths[path].Post.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"application/json": {Schema: kernel.SchemaOf[T](api)},
	}}
}

type rerunInput struct {
	kernel.RunPath
	kernel.Actor

	body io.Reader
}

// Resolve takes the body as it comes: it may be large.
func (in *rerunInput) Resolve(ctx huma.Context) []error {
	in.body = ctx.BodyReader()
	return nil
}

func (s changes) rerun(ctx context.Context, in *rerunInput) (Rerun, error) {
	set, err := readRerun(in.body)
	if err != nil {
		return Rerun{}, err
	}
	err = chooseItems("failed, keys, codes, groups and ranges", set.given(), len(set.Ranges) > 0, len(set.Keys) > 0,
		set.Failed, len(set.Codes) > 0, len(set.Groups) > 0)
	if err == nil && set.Endpoint != "" {
		err = kernel.CheckEndpoint(set.Endpoint)
	}
	if err := cmp.Or(err, s.MayChange(in.Name)); err != nil {
		return Rerun{}, err
	}
	id, err := inspect.New(s.Store).Resolve(ctx, in.Run)
	if err != nil {
		return Rerun{}, err
	}
	done, err := s.config.Redo.Rerun(ctx, set.Request(id, in.Name))
	if err != nil {
		return Rerun{}, unchanged(err, "tranche run show "+id.String())
	}
	out := Rerun{Run: id, Step: done.Step, DryRun: set.DryRun, Items: done.Items, Held: done.Held, Slices: done.Slices,
		Blocks: done.Blocks, Generation: done.Generation, Paused: pausedText(done.Hold, done.HoldDetail),
		Examples: done.Examples, Warnings: []string{}, Steps: done.Steps}
	if view, err := inspect.New(s.Store).Run(ctx, id); err == nil { // it runs either way; the warnings are extra
		out.Warnings = s.Warnings(ctx, view)
	}
	return out, nil
}

// Request is what the store is asked for.
func (set *RerunSettings) Request(run workqueue.RunID, actor string) redo.RerunRequest {
	req := redo.RerunRequest{
		Run: run, Actor: actor, Reason: set.Reason, Canary: set.Canary, CanaryAuto: set.CanaryAuto, DryRun: set.DryRun,
		Select: redo.Selection{Step: set.Step, Failed: set.Failed, Keys: set.Keys, Codes: set.Codes,
			Groups: set.Groups, At: set.FailedAt, Ranges: set.Ranges.ranges(), Evidence: set.evidence()},
	}
	req.Settings.Chunk, req.Settings.InFlight = set.Chunk.given(), set.InFlight.given()
	req.Settings.Endpoint = set.Endpoint
	return req
}

// unchanged is what a change answers for an error: where to look for what was not found, and, of keys that the run does
// not have, that the others were left alone, too.
func unchanged(err error, see string) error {
	if _, ok := errors.AsType[*redo.UnknownKeysError](err); ok {
		err = fmt.Errorf("%w; nothing was changed", err)
	}
	return kernel.Seen(err, see)
}

// chooseItems is chooseOne for items: ranges may also stand beside the other ways, but not beside keys.
func chooseItems(ways string, evidence, ranges, keys bool, others ...bool) error {
	if evidence && !ranges && !keys && !slices.Contains(others, true) {
		return nil
	}
	if ranges && !keys && slices.Contains(others, true) {
		ranges = false
	}
	return kernel.ChooseOne(ways+", or evidence: "+evidenceMembers, append(others, ranges, keys)...)
}

// ResetSettings says of which items the part of a step is taken back, by one of All, Keys, Codes, Groups and
// Ranges, and how. Beside Codes and Groups, Ranges narrow them; evidence narrows all, and may stand alone. As JSON it
// takes 16 MiB at most.
type ResetSettings struct {
	Step  string   `json:"step,omitempty" maxLength:"64" doc:"the step; may be absent where there is only one"`
	All   bool     `json:"all,omitempty" doc:"all items"`
	Keys  []string `json:"keys,omitempty" maxItems:"100000" nullable:"false" doc:"these items"`
	Codes []string `json:"codes,omitempty" maxItems:"1000" nullable:"false" doc:"items that failed with such a code"`

	Groups []string `json:"groups,omitempty" maxItems:"1000" nullable:"false" doc:"items that failed with such a message"`

	FailedAt string `json:"failed_at,omitempty" maxLength:"64" doc:"with codes or groups: failed at this step"`

	Ranges OrdinalRanges `json:"ranges,omitempty"`
	Evidence

	Cascade bool   `json:"cascade,omitempty" doc:"redo the steps after in any case, not only where a part changes"`
	DryRun  bool   `json:"dry_run,omitempty" doc:"change nothing, and say what would be done"`
	Reason  string `json:"reason,omitempty" maxLength:"500" doc:"why, for the audit log"`
}

// Reset is a reset that was done, or would be.
type Reset struct {
	Run        workqueue.RunID      `json:"run"`
	Step       string               `json:"step"`
	DryRun     bool                 `json:"dry_run" doc:"nothing was changed"`
	Cascade    bool                 `json:"cascade"`
	Items      int64                `json:"items"`
	Blocks     int                  `json:"blocks"`
	Examples   []string             `json:"examples" nullable:"false" doc:"the first ten keys"`
	Generation workqueue.Generation `json:"generation"`
	Steps      []redo.StepReset     `json:"steps" doc:"the one that was reset, and those after it"`
	Notes      []string             `json:"notes" doc:"what was selected and left as it is, and why"`
	Paused     string               `json:"paused,omitempty" doc:"why the run is paused, and stays so"`
	Warnings   []string             `json:"warnings"`
}

func (s changes) registerReset(api huma.API) {
	kernel.Register(s.Kernel, api, kernel.ByOperator(huma.Operation{
		OperationID: "reset", Method: http.MethodPost, Path: "/runs/{run}/reset",
		Summary:     "Take the parts of a step back, to be made again",
		Description: "The body is 16 MiB at most; more keys go in several requests.",
	}), s.reset)
	describeBody[ResetSettings](api, "/runs/{run}/reset")
}

func (s changes) reset(ctx context.Context, in *rerunInput) (Reset, error) {
	set, err := readReset(in.body)
	if err != nil {
		return Reset{}, err
	}
	err = chooseItems("all, keys, codes, groups and ranges", set.given(), len(set.Ranges) > 0,
		len(set.Keys) > 0 || set.All, len(set.Codes) > 0, len(set.Groups) > 0)
	if err := cmp.Or(err, s.MayChange(in.Name)); err != nil {
		return Reset{}, err
	}
	id, err := inspect.New(s.Store).Resolve(ctx, in.Run)
	if err != nil {
		return Reset{}, err
	}
	done, err := s.config.Redo.Reset(ctx, redo.ResetRequest{Run: id, Actor: in.Name, Reason: set.Reason,
		Cascade: set.Cascade, DryRun: set.DryRun,
		Select: redo.Selection{Step: set.Step, All: set.All, Keys: set.Keys, Codes: set.Codes, Groups: set.Groups,
			At: set.FailedAt, Ranges: set.Ranges.ranges(), Evidence: set.evidence()}})
	if err != nil {
		return Reset{}, unchanged(err, "tranche run show "+id.String())
	}
	out := Reset{Run: id, Step: done.Step, DryRun: set.DryRun, Cascade: set.Cascade, Items: done.Items,
		Blocks: done.Blocks, Examples: done.Examples, Generation: done.Generation, Steps: done.Steps,
		Notes:  append([]string{}, done.Notes...),
		Paused: pausedText(done.Hold, done.HoldDetail), Warnings: []string{}}
	if view, err := inspect.New(s.Store).Run(ctx, id); err == nil { // it is done either way; the warnings are extra
		out.Warnings = s.Warnings(ctx, view)
	}
	return out, nil
}

// readReset reads the body of a reset.
func readReset(body io.Reader) (set ResetSettings, err error) {
	r := &bodyReader{again: "reset the items", example: `{"step":"accounts","keys":["K-1"]}`}
	err = r.readBody(body, []member{{"step", into(&set.Step, r.text(maxStepName))}, {"all", into(&set.All, r.boolean)},
		{"failed_at", into(&set.FailedAt, r.text(maxStepName))}},
		r.chosen(&set.Keys, &set.Codes, &set.Groups, &set.Ranges), r.evidence(&set.Evidence), []member{
			{"cascade", into(&set.Cascade, r.boolean)},
			{"dry_run", into(&set.DryRun, r.boolean)},
			{"reason", into(&set.Reason, r.text(kernel.MaxReasonBytes))},
		})
	return set, err
}

// AcceptSettings says which failures are accepted, by one of Failed, Keys, Codes, Groups and Ranges. Beside
// Failed, Codes or Groups, Ranges narrow them; evidence narrows all, and may stand alone. As JSON it takes
// 16 MiB at most.
type AcceptSettings struct {
	Step   string   `json:"step,omitempty" maxLength:"64" doc:"failures of this step; absent: of every step"`
	Failed bool     `json:"failed,omitempty" doc:"all items that failed"`
	Keys   []string `json:"keys,omitempty" maxItems:"100000" nullable:"false" doc:"these items, as far as they failed"`
	Codes  []string `json:"codes,omitempty" maxItems:"1000" nullable:"false" doc:"items that failed with such a code"`
	Groups []string `json:"groups,omitempty" maxItems:"1000" nullable:"false" doc:"items that failed with such a message"`

	Ranges OrdinalRanges `json:"ranges,omitempty"`
	Evidence

	Withdraw bool   `json:"withdraw,omitempty" doc:"accept them no more"`
	DryRun   bool   `json:"dry_run,omitempty" doc:"change nothing, and say what would be done"`
	Reason   string `json:"reason,omitempty" maxLength:"500" doc:"why; needed, but to withdraw"`
}

// Accepted is what was accepted, or withdrawn, or would be.
type Accepted struct {
	Run      workqueue.RunID     `json:"run"`
	DryRun   bool                `json:"dry_run" doc:"nothing was changed"`
	Withdraw bool                `json:"withdraw" doc:"they are accepted no more"`
	Items    int64               `json:"items" doc:"of which a failure was accepted, or is no more"`
	Examples []string            `json:"examples" nullable:"false" doc:"the first ten keys of items"`
	Steps    []redo.StepAccepted `json:"steps" nullable:"false" doc:"how many that were at which step"`
	Failed   int64               `json:"failed" doc:"failed items of the run"`
	Accepted int64               `json:"accepted" doc:"of those: their failures are all accepted now"`
}

// acceptances accepts failures.
type acceptances struct {
	store     *database.DB
	mayChange func(actor string) error
}

func (a *acceptances) register(k *kernel.Kernel, api huma.API) {
	kernel.Register(k, api, kernel.Streamed(kernel.ByOperator(huma.Operation{
		OperationID: "accept", Method: http.MethodPost, Path: "/runs/{run}/accept", Summary: "Accept failures",
		Description: "They stay failed and are shown as accepted, and the health is quiet about them. What is run again, " +
			"or reset, is accepted no more. The body is 16 MiB at most; more keys go in several requests.",
	})), a.accept)
	describeBody[AcceptSettings](api, "/runs/{run}/accept")
}

func (a *acceptances) accept(ctx context.Context, in *rerunInput) (Accepted, error) {
	set, err := readAccept(in.body)
	if err != nil {
		return Accepted{}, err
	}
	err = chooseItems("failed, keys, codes, groups and ranges", set.given(), len(set.Ranges) > 0, len(set.Keys) > 0,
		set.Failed, len(set.Codes) > 0, len(set.Groups) > 0)
	if err := cmp.Or(err, a.mayChange(in.Name)); err != nil {
		return Accepted{}, err
	}
	id, err := inspect.New(a.store).Resolve(ctx, in.Run)
	if err != nil {
		return Accepted{}, err
	}
	done, err := redo.New(a.store).Accept(ctx, redo.AcceptRequest{Run: id, Withdraw: set.Withdraw, DryRun: set.DryRun,
		Reason: set.Reason, Actor: in.Name, Select: redo.Selection{Step: set.Step, Failed: set.Failed, Keys: set.Keys,
			Codes: set.Codes, Groups: set.Groups, Ranges: set.Ranges.ranges(), Evidence: set.evidence()}})
	if err != nil {
		return Accepted{}, unchanged(err, "tranche run errors "+id.String())
	}
	return Accepted{Run: id, DryRun: set.DryRun, Withdraw: set.Withdraw, Items: done.Items, Examples: done.Examples,
		Steps: done.Steps, Failed: done.Failed, Accepted: done.Accepted}, nil
}

// readAccept reads the body of an acceptance.
func readAccept(body io.Reader) (set AcceptSettings, err error) {
	r := &bodyReader{again: "accept the items", example: `{"failed":true,"reason":"they are closed"}`}
	err = r.readBody(body, []member{{"failed", into(&set.Failed, r.boolean)}},
		r.chosen(&set.Keys, &set.Codes, &set.Groups, &set.Ranges), r.evidence(&set.Evidence), []member{
			{"step", into(&set.Step, r.text(maxStepName))},
			{"withdraw", into(&set.Withdraw, r.boolean)},
			{"dry_run", into(&set.DryRun, r.boolean)},
			{"reason", into(&set.Reason, r.text(kernel.MaxReasonBytes))},
		})
	return set, err
}

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
