package runs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// Corrected is the result of a correction, also of a dry run.
type Corrected struct {
	Run     workqueue.RunID `json:"run"`
	DryRun  bool            `json:"dry_run" doc:"nothing was changed"`
	Cascade bool            `json:"cascade"`
	redo.Corrected
	Paused   string   `json:"paused,omitempty" doc:"why the run is paused, and stays so"`
	Key      string   `json:"key,omitempty" doc:"the column or field that the keys came from"`
	Warnings []string `json:"warnings" nullable:"false"`
}

// ItemCorrection replaces the payload of one item.
type ItemCorrection struct {
	Payload json.RawMessage `json:"payload" doc:"a JSON object, whole"`
	Cascade bool            `json:"cascade,omitempty" doc:"redo the dependent steps in any case, not only on change"`
	DryRun  bool            `json:"dry_run,omitempty" doc:"change nothing; show what would be done"`
	Reason  string          `json:"reason,omitempty" maxLength:"500" doc:"why, for the audit log"`

	Contract string `json:"contract,omitempty" enum:"reject,warn,off" doc:"when it lacks a field that a service requires"`

	IfGeneration *workqueue.Generation `json:"if_generation,omitempty" doc:"that of the item's newest earlier_payloads as read, or 0; 409 if there is a later one"`
}

const correctDescription = `The body is items in the formats of start-run, up to 256 MiB and 500,000. They replace the
payloads of the same keys, all or none. A completed run reopens. For these items, steps that see payloads withdraw
requests, discard results and run again; later steps rerun where a part that they see changes, or all with cascade.`

type correctInput struct {
	apicore.RunPath
	apicore.Changer
	Key     string `query:"key" doc:"the column or field that is the item's key"`
	Format  string `query:"format" enum:"csv,ndjson,parquet" doc:"detected when absent"`
	Cascade bool   `query:"cascade" doc:"redo the dependent steps in any case, not only where a part changes"`
	DryRun  bool   `query:"dry_run" doc:"change nothing; show what would be done"`
	Reason  string `query:"reason" doc:"why, for the audit log"`
	ShapeQuery

	Contract string `query:"contract" enum:"reject,warn,off" doc:"when no item has a field that a service requires"`
	apicore.Stream
}

func (s changes) correct(ctx context.Context, in *correctInput) (out Corrected, err error) {
	if err := apicore.CheckText("reason", in.Reason, apicore.MaxReasonBytes); err != nil {
		return out, err
	}
	kept, err := s.keep(ctx, in.Body())
	if err != nil {
		return out, err
	}
	defer func() { _ = kept.Close() }() // read only, nothing is lost
	config, err := s.correctionConfig(ctx, in.ID, &in.ShapeQuery, in.Format, in.Key)
	if err != nil {
		return out, err
	}
	contract, err := s.contractOfRun(ctx, in.ID, in.Contract)
	if err != nil {
		return out, err
	}
	given := Adding{Config: config, Kept: kept, contract: contract}
	defer func() { _ = given.Close() }()
	if err := given.Open(); err != nil {
		return out, err
	}
	out, err = s.doCorrect(ctx, &redo.CorrectRequest{Run: in.ID, Actor: in.Name, Reason: in.Reason,
		Unit: given.Rows.Unit(), Cascade: in.Cascade, DryRun: in.DryRun, Items: func() (func(*redo.Correction) error, error) {
			if err := given.Again(); err != nil {
				return nil, err
			}
			given.compared = contract.Compare(given.Rows)
			var read row.Item
			return func(item *redo.Correction) error {
				err := given.Rows.Next(&read)
				item.Key, item.Payload, item.Line = read.Key, read.Payload, read.Line
				return given.compared.see(read.Payload, true, err)
			}, nil
		}})
	out.Key, out.Warnings = given.Rows.Key(), append([]string{}, given.warnings()...)
	return out, err
}

func (s changes) contractOfRun(ctx context.Context, run workqueue.RunID, mode string) (*Contract, error) {
	plan, err := planOfRun(ctx, s.Store, run)
	if err != nil {
		return nil, err
	}
	plan.Items.Contract = cmp.Or(mode, plan.Items.Contract)
	return s.contractOf(ctx, plan)
}

type correctItemInput struct {
	apicore.RunPath
	apicore.Changer
	Key  string `path:"key" doc:"the item's key"`
	Body ItemCorrection
}

func (s changes) correctItem(ctx context.Context, in *correctItemInput) (Corrected, error) {
	config, err := s.correctionConfig(ctx, in.ID, &ShapeQuery{}, "", "")
	if err != nil {
		return Corrected{}, err
	}
	payload, err := intake.Object(in.Body.Payload, config)
	if err != nil {
		return Corrected{}, apicore.BadInput("payload: " + strings.TrimPrefix(err.Error(), "line 1: "))
	}
	set := &in.Body
	contract, err := s.contractOfRun(ctx, in.ID, set.Contract)
	if err != nil {
		return Corrected{}, err
	}
	warnings, err := contract.one(in.Key, payload)
	if err != nil {
		return Corrected{}, err
	}
	out, err := s.doCorrect(ctx, &redo.CorrectRequest{Run: in.ID, Actor: in.Name, Reason: set.Reason, Cascade: set.Cascade,
		DryRun: set.DryRun, Since: set.IfGeneration, Items: func() (func(*redo.Correction) error, error) {
			end := false
			return func(item *redo.Correction) error {
				if end {
					return io.EOF
				}
				end = true
				item.Key, item.Payload = in.Key, payload
				return nil
			}, nil
		}})
	out.Warnings = append([]string{}, warnings...)
	return out, err
}

// correctionConfig reads corrections as the plan says, except that items that violate the schema are always refused.
func (s changes) correctionConfig(ctx context.Context, run workqueue.RunID, shape *ShapeQuery, format, key string,
) (intake.Config, error) {
	look, err := ItemsOf(ctx, s.Store, run)
	if err == nil {
		look, err = shape.Over(look)
	}
	if err != nil {
		return intake.Config{}, err
	}
	config, err := s.IntakeConfig(ctx, format, key, look)
	config.TakeInvalid, config.Sort, config.Partial = false, "", true
	if err != nil {
		return config, err
	}
	said, err := shape.Over(&gather.Items{})
	config.Export = ExportOf(ctx, s.Store, run, config, said)
	return config, err
}

func (s changes) doCorrect(ctx context.Context, req *redo.CorrectRequest) (Corrected, error) {
	done, err := s.config.Engine.Correct(ctx, *req)
	if invalid, ok := errors.AsType[*intake.InvalidError](err); ok {
		invalid.Mended = true
	}
	if err != nil {
		return Corrected{}, unchanged(err, "tranche run items "+req.Run.String())
	}
	done.Steps = append([]redo.StepReset{}, done.Steps...) // never nil
	return Corrected{Run: req.Run, DryRun: req.DryRun, Cascade: req.Cascade, Corrected: done,
		Paused: pausedText(done.Hold, done.HoldDetail), Warnings: []string{}}, nil
}
