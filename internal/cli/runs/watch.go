package runs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

const (
	watchFirst = 10 * time.Millisecond // short runs end before anybody has to wait; later looks come less often
	watchPoll  = 400 * time.Millisecond
	plainEvery = 2 * time.Second
	// patience is how long a server that went away may take to come back.
	patience = 2 * time.Minute
)

// Watch is tranche run watch.
type Watch struct {
	Ref string `arg:"" name:"run" help:"An id, a piece of one, a name, or last."`
	watchFlags
}

// Validate is called by kong.
func (r *Watch) Validate() error { return r.check() }

// Run follows a run.
func (r *Watch) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return watch(ctx, term, cl, r.Ref, &r.watchFlags)
}

// watch follows a run until it ends and then says how. Ending the watch does not end the run.
func watch(ctx context.Context, term *cli.Console, cl *client.Client, ref string, w *watchFlags) error {
	ctx, cancel := w.bounded(ctx)
	defer cancel()
	first, err := cl.GetRun(ctx, ref, term.Keep())
	if err != nil {
		return err
	}
	progress := newProgress(term)
	run, err := follow(ctx, term, cl, first, progress, w.stays(term))
	progress.End()
	if errors.Is(err, errHeld) || errors.Is(err, errMaxWait) || errors.Is(err, context.Canceled) {
		return left(term, &run, w, err)
	}
	if err != nil {
		return err
	}
	return conclude(term, run)
}

func follow(
	ctx context.Context, term *cli.Console, cl *client.Client, run client.RunDocument, progress *progress, stays bool,
) (client.RunDocument, error) {
	pause := watchFirst
	tick := time.NewTimer(pause)
	defer tick.Stop()
	seen := time.Now()
	for {
		progress.show(run)
		if run.Ended() {
			return run, nil
		}
		if !stays && waits(&run) {
			return run, errHeld
		}
		select {
		case <-ctx.Done():
			return run, context.Cause(ctx)
		case <-tick.C:
			pause = min(2*pause, watchPoll)
			tick.Reset(pause)
		}
		next, err := cl.GetRun(ctx, run.ID, term.Keep())
		switch {
		case err == nil:
			run, seen = next, time.Now()
		case ctx.Err() != nil:
			return run, context.Cause(ctx)
		case time.Since(seen) > patience || !passing(err):
			return run, err
		}
	}
}

// passing reports whether a failure may go away: the server is being restarted, or its database is.
func passing(err error) bool {
	var problem *client.ProblemError
	return !errors.As(err, &problem) || problem.Status >= 500
}

// conclude says how the run ended, and gives the exit code.
func conclude(term *cli.Console, run client.RunDocument) error {
	if term.JSON {
		if err := term.Sent(); err != nil {
			return err
		}
	} else if err := term.Printf("%s", conclusion(run)); err != nil {
		return err
	}
	switch {
	case run.State == "cancelled":
		return cli.Exit(cli.ExitOther)
	case run.Failed > 0:
		return cli.Exit(cli.ExitFailed)
	default:
		return nil
	}
}

func conclusion(run client.RunDocument) string {
	text := fmt.Sprintf("%s: %s of %s items done, %s, in %s", run.State, cli.Count(run.Done), cli.Count(run.Items),
		FailedText(run.Failed, run.Accepted), tookText(&run))
	if run.Seconds > 0 && run.Generation == 1 && run.State == "completed" {
		text += fmt.Sprintf(" (%s items/s)", cli.Count(int64(float64(run.Items)/run.Seconds)))
	}
	text += "\n"
	if run.Failed > 0 {
		id := cli.ShortID(run.ID)
		text += fmt.Sprintf("  why:        tranche run errors %s\n", id)
		text += fmt.Sprintf("  run again:  tranche run rerun %s --failed --wait\n", id)
	}
	return text
}

// progress shows a run that moves: a bar for a person, now and then a line for a log.
type progress struct {
	term  *cli.Console
	live  bool
	shown time.Time
	last  string
	lines int // of what is on the terminal
}

func newProgress(term *cli.Console) *progress {
	return &progress{term: term, live: cli.IsTerminal(term.Err)}
}

func (p *progress) show(run client.RunDocument) {
	if p.term.JSON && !p.live {
		return
	}
	if p.live {
		p.draw(liveLines(run, min(cli.Width(p.term.Err), 100)))
		return
	}
	line := plainLine(run)
	if line == p.last || (time.Since(p.shown) < plainEvery && !run.Ended()) {
		return
	}
	p.last, p.shown = line, time.Now()
	_, _ = fmt.Fprintln(p.term.Err, line) // only for looks
}

// End leaves the last state of the bar where it is, and the next line begins below it.
func (p *progress) End() {
	if p.live && p.last != "" {
		_, _ = fmt.Fprintln(p.term.Err) // only for looks
	}
}

func share(run client.RunDocument) float64 {
	if len(run.Steps) > 1 {
		return run.Progress
	}
	if run.Items == 0 {
		return 0
	}
	return float64(run.Done+run.Failed) / float64(run.Items)
}

func inFlight(run client.RunDocument) (items int64) {
	for i := range run.Steps {
		items += run.Steps[i].InFlight
	}
	return items
}

func plainLine(run client.RunDocument) string { return runLine(run, len(run.Steps) > 1) }

// runLine is how a run is, with how far each of its steps is or without.
func runLine(run client.RunDocument, steps bool) string {
	parts := []string{
		fmt.Sprintf("%4s", percent(share(run))), fmt.Sprintf("%s/%s", cli.Count(run.Done+run.Failed), cli.Count(run.Items)),
	}
	if run.Rate > 0 {
		parts = append(parts, cli.Count(int64(run.Rate))+perSecondOf(run))
	}
	if run.ETASeconds != nil {
		parts = append(parts, "ETA "+cli.Span(cli.Seconds(*run.ETASeconds)))
	}
	parts = append(parts, cli.Count(inFlight(run))+" in flight", cli.Count(run.Failed)+" failed")
	if steps {
		parts = append(parts, stepsLine(run))
	}
	if run.State != "running" || run.Open != nil {
		parts = append(parts, run.State+openText(run.Open))
	}
	if run.State == "paused" || run.State == "running" {
		parts = append(parts, firstWarning(run)...)
	}
	return strings.Join(parts, "  ")
}

// perSecondOf is the unit of a run's rate: of several steps, each item's part counts at each step.
func perSecondOf(run client.RunDocument) string {
	if len(run.Steps) > 1 {
		return " parts/s"
	}
	return "/s"
}

// firstWarning is what a person should know first about a run that is under way; none, if there is nothing.
func firstWarning(run client.RunDocument) []string {
	if len(run.Warnings) == 0 {
		return nil
	}
	return []string{cli.Inert(run.Warnings[0])}
}

// barLine is plainLine behind a bar that takes the room that is left.
func barLine(run client.RunDocument, columns int) string {
	text := plainLine(run)
	room := columns - len([]rune(text)) - 3
	if room < 10 {
		return cli.Short(text, columns-1)
	}
	return bar(share(run), min(room, 30)) + "  " + text
}

func bar(share float64, columns int) string {
	full := int(share * float64(columns))
	return strings.Repeat("█", full) + strings.Repeat("░", columns-full)
}
