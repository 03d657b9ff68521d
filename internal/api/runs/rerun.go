package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
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
