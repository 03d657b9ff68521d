package runs

import (
	"cmp"
	"context"
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/redo"
)

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
