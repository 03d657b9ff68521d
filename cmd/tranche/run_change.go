package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/tranchehq/tranche/internal/api"
)

type runRerun struct {
	Ref      string   `arg:"" name:"run" help:"An id, the beginning of one, a name, or last."`
	Failed   bool     `xor:"which" help:"All items that failed."`
	Key      []string `xor:"which" sep:"none" help:"This item, whether it failed or not; may stand more than once." placeholder:"K"`
	Code     []string `xor:"which" sep:"none" help:"Items that failed with this code; may stand more than once." placeholder:"C"`
	Chunk    int      `help:"Items in a request, from now on." placeholder:"N"`
	InFlight int      `help:"Requests out at once, from now on." placeholder:"N"`
	Wait     bool     `help:"Watch until the run ends; exit 3 when items failed."`
}

// Validate is called by kong.
func (r *runRerun) Validate() error {
	switch {
	case !r.Failed && len(r.Key) == 0 && len(r.Code) == 0:
		return errors.New("say which items: --failed, --key K or --code C")
	case r.Chunk < 0 || r.Chunk > 8192:
		return fmt.Errorf("--chunk is %d; it must lie between 1 and 8192", r.Chunk)
	case r.InFlight < 0 || r.InFlight > 10_000:
		return fmt.Errorf("--in-flight is %d; it must lie between 1 and 10000", r.InFlight)
	}
	return nil
}

// Run sets items going again.
func (r *runRerun) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	again, err := cl.Rerun(ctx, r.Ref, api.RerunSettings{
		Failed: r.Failed, Keys: r.Key, Codes: r.Code, Chunk: r.Chunk, InFlight: r.InFlight,
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
