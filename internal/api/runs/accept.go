package runs

import (
	"cmp"
	"context"
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/redo"
)

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
