package runs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// watchFlags say how long a run is watched. Without them a job of a scheduler could hang for ever.
type watchFlags struct {
	OnHold  string        `enum:",wait,exit" default:"" help:"When the run is held, or a step of it waits for an approval, and nothing moves before somebody comes: wait, or exit with 4. Default: wait at a terminal, else exit." placeholder:"wait|exit"`
	MaxWait time.Duration `help:"Watch no longer than this, then exit with 5; the run goes on." placeholder:"TIME"`
}

// WaitFlags are those of a command that sets a run going.
type WaitFlags struct {
	Wait bool `help:"Watch until the run ends; exit 3 when items failed."`
	watchFlags
}

// Check refuses what does not go together.
func (w *WaitFlags) Check(dryRun bool) error {
	switch {
	case w.Wait && dryRun:
		return errors.New("give either --dry-run or --wait: a dry run sets nothing going that could be waited for")
	case !w.Wait && w.OnHold != "":
		return errors.New("--on-hold says what --wait does; give --wait too")
	case !w.Wait && w.MaxWait != 0:
		return errors.New("--max-wait bounds --wait; give --wait too")
	}
	return w.watchFlags.check()
}

// Follow follows the run that was set going until it ends.
func (w *WaitFlags) Follow(ctx context.Context, term *cli.Console, cl *client.Client, run string) error {
	return watch(ctx, term, cl, run, &w.watchFlags)
}

func (w *watchFlags) check() error {
	if w.MaxWait < 0 {
		return fmt.Errorf("--max-wait is %s; it must be a time like 30m or 2h", w.MaxWait)
	}
	return nil
}

// stays reports whether a held run is watched on: by a person, or by somebody who says so.
func (w *watchFlags) stays(term *cli.Console) bool {
	if w.OnHold != "" {
		return w.OnHold == "wait"
	}
	return cli.IsTerminal(term.Err)
}

var (
	errHeld    = errors.New("the run waits for somebody")
	errMaxWait = errors.New("the time to watch is over")
)

// bounded ends with errMaxWait as its cause when the run has been watched for long enough.
func (w *watchFlags) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if w.MaxWait == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, w.MaxWait, errMaxWait)
}

// waits reports whether nothing of a run moves before somebody comes: it is held, or all that is left stands behind a
// step that waits for an approval. What is out at services still comes in, and may complete the run.
func waits(run *client.RunDocument) bool {
	held := run.Hold != nil && run.State == "paused"
	if !held && len(run.Approval) == 0 {
		return false
	}
	for i := range run.Steps {
		s := &run.Steps[i]
		if s.InFlight > 0 || !held && (s.Scheduled > 0 || s.Ready > 0 && (!s.Barrier || s.BarrierPassed)) {
			return false
		}
	}
	return true
}

const goOn = "go on with: tranche run watch "

// left says why the watch ended before the run did, and how to go on; the exit code tells scripts.
func left(term *cli.Console, run *client.RunDocument, w *watchFlags, why error) error {
	id := cli.ShortID(run.ID)
	if term.JSON && !errors.Is(why, context.Canceled) {
		if err := term.Sent(); err != nil {
			return err
		}
	}
	switch {
	case errors.Is(why, errHeld):
		for _, warning := range run.Warnings {
			term.Note("%s", warning)
		}
		term.Note("it waits for somebody, so the watch ends here (--on-hold wait stays); %s%s", goOn, id)
		return cli.Exit(cli.ExitHeld)
	case errors.Is(why, errMaxWait):
		term.Note("the run has not ended within --max-wait %s; it goes on on the server; %s%s", w.MaxWait, goOn, id)
		return cli.Exit(cli.ExitMaxWait)
	default:
		term.Note("the run is not ended by this: it goes on on the server; %s%s", goOn, id)
		return cli.Exit(cli.ExitInterrupted)
	}
}
