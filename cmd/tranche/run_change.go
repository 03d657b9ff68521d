package main

import (
	"context"
	"errors"

	"github.com/tranchehq/tranche/internal/api"
)

type runRerun struct {
	Ref    string   `arg:"" name:"run" help:"An id, the beginning of one, a name, or last."`
	Failed bool     `xor:"which" help:"All items that failed."`
	Key    []string `xor:"which" sep:"none" help:"This item, whether it failed or not; may stand more than once." placeholder:"K"`
	Code   []string `xor:"which" sep:"none" help:"Items that failed with this code; may stand more than once." placeholder:"C"`
	Wait   bool     `help:"Watch until the run ends; exit 3 when items failed."`
	batchSize
}

// Validate is called by kong.
func (r *runRerun) Validate() error {
	if !r.Failed && len(r.Key) == 0 && len(r.Code) == 0 {
		return errors.New("say which items: --failed, --key K or --code C")
	}
	return r.check()
}

// Run sets items going again.
func (r *runRerun) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	again, err := cl.Rerun(ctx, r.Ref, api.RerunSettings{
		Failed: r.Failed, Keys: r.Key, Codes: r.Code, Chunk: given(r.Chunk), InFlight: given(r.InFlight),
	})
	if err != nil {
		return err
	}
	for _, w := range again.Warnings {
		term.note("warning: %s", w)
	}
	if term.json && !r.Wait {
		return term.document(again)
	}
	if !term.json {
		err := term.printf("run %s runs %s items again, as generation %d\n", again.Run, count(again.Items), again.Generation)
		if err != nil {
			return err
		}
	}
	if !r.Wait {
		return nil
	}
	return watch(ctx, term, cl, again.Run.String())
}

type runCancel struct {
	Ref string `arg:"" name:"run" help:"An id, the beginning of one, a name, or last."`
}

// Run cancels a run.
func (r *runCancel) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	stopped, err := cl.Cancel(ctx, r.Ref)
	if err != nil {
		return err
	}
	if term.json {
		return term.document(stopped)
	}
	return term.printf("run %s cancelled: %s items stay without an outcome\n", stopped.Run, count(stopped.Items))
}
