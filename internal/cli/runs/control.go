package runs

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
)

// whichRuns is one run or all.
type whichRuns struct {
	Ref    string `arg:"" optional:"" name:"run" help:"An id, a piece of one, a name, or last."`
	All    bool   `help:"Every run that is under way."`
	Reason string `help:"Why, for whoever looks at the run and for the audit log." placeholder:"TEXT"`
}

func (w *whichRuns) Validate() error {
	if w.All == (w.Ref != "") {
		return errors.New("name a run, or give --all for every run")
	}
	return nil
}

func (w *whichRuns) settings() client.ControlSettings {
	return client.ControlSettings{Reason: w.Reason}
}

// do asks for the action and says what it did.
func (w *whichRuns) do(ctx context.Context, term *cli.Console,
	every func(context.Context, client.ControlAll, ...client.CallOption) (client.Controlled, error),
	one func(keep client.CallOption) (client.Controlled, error), text func(*client.Controlled) string,
) error {
	var done client.Controlled
	var err error
	if w.All {
		done, err = every(ctx, client.ControlAll{All: true, Reason: w.Reason}, term.Keep())
	} else {
		done, err = one(term.Keep())
	}
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	for _, l := range done.Left {
		term.Note("run %s was left as it is: %s", l.Run, l.Why)
	}
	return term.Printf("%s\n", text(&done))
}

// runsText names one run, or says how many: "run 0199…", "3 runs".
func runsText(done *client.Controlled) string {
	switch {
	case done.Run != nil:
		return "run " + *done.Run
	case len(done.Runs) == 1:
		return "1 run"
	default:
		return cli.Count(int64(len(done.Runs))) + " runs"
	}
}

// runRef is the argument for the command that comes next.
func runRef(done *client.Controlled) string {
	if done.Run != nil {
		return *done.Run
	}
	return "--all"
}

// Pause is tranche run pause.
type Pause struct{ whichRuns }

// Run pauses runs.
func (r *Pause) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return r.do(ctx, term, cl.PauseAllRuns, func(keep client.CallOption) (client.Controlled, error) {
		return cl.PauseRun(ctx, r.Ref, r.settings(), keep)
	}, pausedText)
}

func pausedText(done *client.Controlled) string {
	if len(done.Runs) == 0 {
		return "no run was paused: none is under way that is not paused already"
	}
	text := runsText(done) + " paused: nothing more is sent to services"
	if done.Slices > 0 {
		text += fmt.Sprintf("\nout: %s in %s; their answers are still recorded",
			cli.Plural(done.Items, "item"), cli.Plural(done.Slices, "request"))
	}
	if done.Run == nil {
		text += "\nruns that are started from now on are not paused"
	}
	return text + "\ngo on with: tranche run resume " + runRef(done)
}

// Resume is tranche run resume.
type Resume struct {
	whichRuns
	MaxFailed *string `help:"Allow so many failed items from now on: 500, 1% or none." placeholder:"N"`
}

// Validate is called by kong.
func (r *Resume) Validate() error {
	if err := r.whichRuns.Validate(); err != nil {
		return err
	}
	if r.MaxFailed == nil {
		return nil
	}
	if r.All {
		return errors.New("--max-failed is for one run; name it")
	}
	if _, err := workqueue.ParseMaxFailed(*r.MaxFailed); err != nil {
		return fmt.Errorf("--max-failed %s: %w", *r.MaxFailed, err)
	}
	return nil
}

// Run resumes runs.
func (r *Resume) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return r.do(ctx, term, cl.ResumeAllRuns, func(keep client.CallOption) (client.Controlled, error) {
		return cl.ResumeRun(ctx, r.Ref, client.ResumeSettings{Reason: r.Reason, MaxFailed: r.MaxFailed}, keep)
	}, func(done *client.Controlled) string {
		if len(done.Runs) == 0 {
			return "no run was resumed"
		}
		if done.Items > 0 {
			return fmt.Sprintf("%s goes on, though it was cancelled: %s had no outcome", runsText(done),
				cli.Plural(done.Items, "item"))
		}
		return runsText(done) + " resumed: " + theirs(done) + " items are sent to services again"
	})
}

// Cancel is tranche run cancel.
type Cancel struct{ whichRuns }

// Run cancels runs.
func (r *Cancel) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return r.do(ctx, term, cl.CancelAllRuns, func(keep client.CallOption) (client.Controlled, error) {
		return cl.CancelRun(ctx, r.Ref, r.settings(), keep)
	}, func(done *client.Controlled) string {
		if len(done.Runs) == 0 {
			return "no run was cancelled: none is under way"
		}
		return fmt.Sprintf("%s cancelled: %s left without an outcome", runsText(done), cli.Plural(done.Items, "item"))
	})
}

func theirs(done *client.Controlled) string {
	if strings.HasSuffix(runsText(done), "runs") {
		return "their"
	}
	return "its"
}
