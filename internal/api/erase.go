package api

import (
	"cmp"
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/erasure"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// EraseSettings say whose traces are erased.
type EraseSettings struct {
	Key    string `json:"key" minLength:"1" doc:"the key of items and of operations of collectors"`
	Run    string `json:"run,omitempty" doc:"out of this run only: an id, a piece of one, a name, or last"`
	DryRun bool   `json:"dry_run,omitempty" doc:"change nothing, and say what would be erased"`
	Reason string `json:"reason,omitempty" maxLength:"500" doc:"why, for the audit log; do not name the key in it"`
}

// ErasedKey is what was erased of a key, or would be.
type ErasedKey struct {
	DryRun    bool              `json:"dry_run" doc:"nothing was changed"`
	Marker    string            `json:"marker" doc:"stands where the key stood"`
	Runs      []workqueue.RunID `json:"runs" nullable:"false" doc:"that had the key"`
	Erased    erasure.Erased    `json:"erased"`
	Unreached []string          `json:"unreached" nullable:"false" doc:"what is not reached, for people"`
}

// erasures erase what is kept of keys.
type erasures struct {
	store     *database.DB
	mayChange func(actor string) error
}

func (e *erasures) register(k *kernel.Kernel, api huma.API) {
	kernel.Register(k, api, kernel.ByAdmin(huma.Operation{
		OperationID: "erase", Method: http.MethodPost, Path: "/erase", Summary: "Erase what is kept of a key",
		Description: "Payloads, results, messages of errors, letters, quarantined messages and parked operations are gone, " +
			"and a marker takes the place of the key, out of all runs or one. Counts, states and codes stay. Refused while " +
			"something is still done with the key. What was broken off is finished by asking again.",
	}), e.erase)
}

type eraseInput struct {
	kernel.Actor
	Body EraseSettings
}

func (e *erasures) erase(ctx context.Context, in *eraseInput) (ErasedKey, error) {
	set := &in.Body
	err := cmp.Or(e.mayChange(in.Name), kernel.CheckText("key", set.Key, intake.MaxKeyBytes),
		kernel.CheckText("reason", set.Reason, kernel.MaxReasonBytes))
	if err != nil {
		return ErasedKey{}, err
	}
	req := erasure.Request{Key: set.Key, DryRun: set.DryRun, Reason: set.Reason, Actor: in.Name}
	if set.Run != "" {
		if req.Run, err = inspect.New(e.store).Resolve(ctx, set.Run); err != nil {
			return ErasedKey{}, err
		}
	}
	done, err := erasure.New(e.store).Erase(ctx, req)
	if err != nil {
		return ErasedKey{}, err
	}
	return ErasedKey{DryRun: set.DryRun, Marker: done.Marker, Runs: append([]workqueue.RunID{}, done.Runs...),
		Erased: done.Erased, Unreached: append(done.Kept, erasure.Unreached()...)}, nil
}
