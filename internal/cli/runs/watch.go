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
	watchFirst = 10 * time.Millisecond // short runs end quickly; the interval doubles up to watchPoll
	watchPoll  = 400 * time.Millisecond
	plainEvery = 2 * time.Second
)

type runWatch struct {
	runArg
	watchFlags
}

func (r *runWatch) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return watch(ctx, term, cl, r.Ref, &r.watchFlags, r.MaxWait > 0)
}

// watch follows a run until it ends and prints the result. Ending the watch does not end the run. It waits for a
// server that disappears; one missing from the start is waited for only if the wait is limited or the server surely
// exists.
func watch(ctx context.Context, term *cli.Console, cl *client.Client, ref string, w *watchFlags, sure bool) error {
	if w.MaxWait > 0 {
		bounded, cancel := context.WithTimeoutCause(ctx, w.MaxWait, errMaxWait)
		defer cancel()
		ctx = bounded
	}
	var run client.RunDocument
	run.ID = ref
	progress := &progress{term: term, live: cli.IsTerminal(term.Err)}
	err := follow(ctx, cl, &run, progress, w.stays(term), sure)
	progress.end()
	switch {
	case errors.Is(err, errHeld) || errors.Is(err, errMaxWait) || errors.Is(err, context.Canceled):
		return left(term, &run, w, err)
	case err != nil:
		return err
	}
	err = cli.Say(term, conclusion)(run, nil)
	if run.State == "cancelled" {
		return cli.FailIf(true, cli.ExitCancelled, err)
	}
	return cli.FailIf(run.Failed > 0, cli.ExitFailed, err)
}

// follow polls the run and shows it until it ends, or waits for a decision and stays is false.
func follow(ctx context.Context, cl *client.Client, run *client.RunDocument, progress *progress, stays, sure bool,
) error {
	term, away := progress.term, false
	for pause := watchFirst; ; pause = min(2*pause, watchPoll) {
		next, err := cl.GetRun(ctx, run.ID)
		switch {
		case err == nil:
			*run, sure, away = next, true, false
			progress.show(*run)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !sure || !passing(err):
			return err
		case !away:
			away = true
			term.Note("waiting for the server: %v", err)
		}
		if run.Ended() {
			return nil
		}
		if !stays && !away && waits(run) {
			return errHeld
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// passing reports whether a failure may be temporary: the server or its database is restarting.
func passing(err error) bool {
	var problem *client.ProblemError
	return !errors.As(err, &problem) || problem.Status >= 500
}

func conclusion(run *client.RunDocument) string {
	whole := run.Seconds > 0 && run.Generation == 1 && run.State == "completed"
	return cli.Text("%v: %v of %v items done, %v, in %v", run.State, run.Done, run.Items,
		failedText(run.Failed, run.Accepted), tookText(run)) +
		cli.If(whole, " (%v items/s)", int64(float64(run.Items)/run.Seconds)) +
		cli.If(run.Failed > 0, "\n  why:        tranche run errors %[1]v\n"+
			"  run again:  tranche run rerun %[1]v --failed --wait", cli.ShortID(run.ID))
}

type progress struct {
	term  *cli.Console
	live  bool
	shown time.Time
	last  string
	lines int // lines on the terminal
}

func (p *progress) show(run client.RunDocument) {
	if p.live {
		p.draw(liveLines(run, min(cli.Width(p.term.Err), 100)))
		return
	}
	line := plainLine(run)
	if p.term.JSON || line == p.last || time.Since(p.shown) < plainEvery && !run.Ended() {
		return
	}
	p.last, p.shown = line, time.Now()
	_, _ = fmt.Fprintln(p.term.Err, line) // cosmetic
}

func (p *progress) end() {
	if p.live && p.last != "" {
		_, _ = fmt.Fprintln(p.term.Err) // cosmetic
	}
}

func share(run client.RunDocument) float64 {
	if len(run.Steps) > 1 {
		return run.Progress
	}
	return float64(run.Done+run.Failed) / float64(max(run.Items, 1))
}

func plainLine(run client.RunDocument) string { return runLine(run, len(run.Steps) > 1) }

func runLine(run client.RunDocument, steps bool) string {
	forecast := ""
	if f := run.Forecast; f != nil && f.P50 != nil {
		forecast = "ends " + band(f)
	} else if f != nil && f.Then != nil {
		forecast = endText(&run.RunSummary)
	}
	out, progress := int64(0), make([]string, len(run.Steps))
	for i := range run.Steps {
		s := &run.Steps[i]
		out += s.InFlight
		progress[i] = cli.EscapeControl(s.Name) + " " + percent(s.Progress)
	}
	warning := ""
	if (run.State == "paused" || run.State == "running") && len(run.Warnings) > 0 {
		warning = cli.EscapeControl(run.Warnings[0]) // the most important one
	}
	return cli.Join("  ", fmt.Sprintf("%4s", percent(share(run))), cli.Text("%v/%v", run.Done+run.Failed, run.Items),
		cli.If(run.Rate > 0, "%v%v", int64(run.Rate), perSecondOf(run)), forecast,
		cli.Text("%v in flight", out), cli.Text("%v failed", run.Failed),
		cli.If(steps, "%v", strings.Join(progress, ", ")),
		cli.If(run.State != "running" || run.Open != nil, "%v%v", run.State, openText(run.Open)), warning)
}

func perSecondOf(run client.RunDocument) string {
	if len(run.Steps) > 1 {
		return " parts/s"
	}
	return "/s"
}

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

// watchFlags limit watching a run. Without them a scheduler's job could hang indefinitely.
type watchFlags struct {
	OnHold  string        `json:"-" enum:",wait,exit" default:"" help:"When the run is held, or nothing moves until a step is approved: wait, or exit with 4. Default: wait at a terminal, else exit." placeholder:"wait|exit"`
	MaxWait time.Duration `json:"-" within:"0s," help:"Stop watching after this time and exit with 5; the run continues." placeholder:"TIME"`
}

type waitFlags struct {
	Wait bool `json:"-" help:"Watch until the run ends; exit 3 when items failed, 8 when it was cancelled."`
	watchFlags
}

func (w *waitFlags) Check(dryRun bool) error {
	switch {
	case w.Wait && dryRun:
		return errors.New("give either --dry-run or --wait: a dry run starts nothing to wait for")
	case !w.Wait && w.OnHold != "":
		return errors.New("--on-hold says what --wait does; give --wait too")
	case !w.Wait && w.MaxWait != 0:
		return errors.New("--max-wait bounds --wait; give --wait too")
	}
	return nil
}

// end prints what was started, and with --wait follows the run until it ends. With --json and --wait only the run is
// printed.
func (w *waitFlags) end(
	ctx context.Context, term *cli.Console, cl *client.Client, run string, say func() error,
) error {
	if !term.JSON || !w.Wait {
		if err := say(); err != nil {
			return err
		}
	}
	if !w.Wait {
		return nil
	}
	return watch(ctx, term, cl, run, &w.watchFlags, true)
}

// stays reports whether a held run is watched further: at a terminal, or on request.
func (w *watchFlags) stays(term *cli.Console) bool {
	if w.OnHold != "" {
		return w.OnHold == "wait"
	}
	return cli.IsTerminal(term.Err)
}

var (
	errHeld    = errors.New("the run waits for an operator")
	errMaxWait = errors.New("the time to watch has passed")
)

// waits reports whether a run needs a decision to continue: it is held, or the rest is behind a step that waits for
// approval. Requests in flight are still recorded, and may complete the run.
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

const goOn = "continue with: tranche run watch "

func left(term *cli.Console, run *client.RunDocument, w *watchFlags, why error) error {
	id, seen := run.ID, run.State != ""
	if seen {
		id = cli.ShortID(run.ID)
	}
	if term.JSON && seen && !errors.Is(why, context.Canceled) {
		if err := term.Sent(); err != nil {
			return err
		}
	}
	switch {
	case errors.Is(why, errHeld):
		for _, warning := range run.Warnings {
			term.Note("%s", warning)
		}
		term.Note("it waits for an operator; --on-hold wait keeps watching; %s%s", goOn, id)
		return cli.Exit(cli.ExitHeld)
	case errors.Is(why, errMaxWait):
		what := "the run has not ended within"
		if !seen {
			what = "the server has not answered within"
		}
		term.Note("%s --max-wait %s; the run continues on the server; %s%s", what, w.MaxWait, goOn, id)
		return cli.Exit(cli.ExitMaxWait)
	default:
		term.Note("the run continues on the server; %s%s", goOn, id)
		return cli.Exit(cli.ExitInterrupted)
	}
}

type runRequests struct {
	runArg
	slicesPage
}

type slicesPage struct {
	State []string `enum:"scheduled,claimed,sent" help:"Only those in this state; repeatable." placeholder:"STATE"`
	Limit int      `default:"20" within:"1,1000" help:"How many, at most 1000." placeholder:"N"`
	After string   `help:"Only those after this one, by its whole ID." placeholder:"ID"`
}

func (r *runRequests) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	page, err := cl.ListSlices(ctx, r.Ref, client.ListSlicesParams(r.slicesPage))
	if err == nil && !term.JSON {
		n := &page.Counts
		err = term.Printf("%s", cli.Text("%v scheduled, %v claimed, %v sent\n", n.Scheduled, n.Claimed, n.Sent))
		if len(page.Slices) == 0 {
			return err
		}
	}
	return (&cli.List[client.SliceView]{
		Columns: "SLICE|STEP|STATE|ITEMS>|TRY>|WHY|FIRST|NODE|SERVICE|DEADLINE", Next: page.Next,
		Row: func(s *client.SliceView) []any {
			node, until := "-", cli.Cell(s.Deadline)
			if s.Node != nil {
				node = fmt.Sprintf("%s:%d", s.Node.Host, s.Node.PID)
			}
			if s.Deadline == nil && s.NotBefore != nil {
				until = cli.Text("not before %v", s.NotBefore)
			}
			return []any{s.ID[:min(len(s.ID), 8)], s.Step, s.State, s.Remaining, s.Attempt, s.Cause, s.FirstKey, node,
				cli.OrDash(s.Service), until}
		},
	}).Print(term, page.Slices, err)
}

type runItems struct {
	runArg
	itemsPage
}

type itemsPage struct {
	From  int64    `help:"The first ordinal." placeholder:"N"`
	To    *int64   `help:"The last ordinal." placeholder:"N"`
	Step  string   `help:"Their state at this step; over all steps when absent." placeholder:"NAME"`
	State []string `enum:"waiting,held,ready,scheduled,in_flight,done,failed,skipped,stale" help:"Only those in this state; repeatable." placeholder:"STATE"`
	After *int64   `help:"Only those after this ordinal." placeholder:"N"`
	Limit int      `default:"20" within:"1,1000" help:"How many, at most 1000." placeholder:"N"`
}

func (r *runItems) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	page, err := cl.ListItems(ctx, r.Ref, client.ListItemsParams(r.itemsPage))
	return (&cli.List[client.ItemRow]{
		Columns: "ORDINAL>|KEY|STATE|TRIES>|ERROR",
		Row: func(item *client.ItemRow) []any {
			problem := ""
			if item.Error != nil {
				problem = item.Error.Code + ": " + item.Error.Message
			}
			return []any{fmt.Sprint(item.Ordinal), item.Key, item.State + cli.If(item.Accepted, " (accepted)"), item.Attempts,
				problem}
		},
		Empty: "no items", Next: page.Next,
	}).Print(term, page.Items, err)
}

const (
	// maxBars limits the steps shown with a bar each; a run with more steps shows its total only.
	maxBars = 12
	barRoom = 24
	// minBarColumns is the width needed for a bar with its numbers.
	minBarColumns = 78
)

func liveLines(run client.RunDocument, columns int) []string {
	if len(run.Steps) < 2 || len(run.Steps) > maxBars || columns < minBarColumns {
		return []string{barLine(run, columns)}
	}
	lines := []string{cli.Short(runLine(run, false), columns-1)}
	name := func(i int) string { return cli.Short(cli.EscapeControl(run.Steps[i].Name), 16) }
	width := 0
	for i := range run.Steps {
		width = max(width, len([]rune(name(i))))
	}
	for i := range run.Steps {
		s := &run.Steps[i]
		line := fmt.Sprintf("  %-*s  %s %6s  %s", width, name(i), bar(s.Progress, barRoom), percent(s.Progress),
			cli.Count(s.Done)) + cli.If(s.Failed > 0, "  %v failed", s.Failed) +
			cli.If(s.Skipped > 0, "  %v left out", s.Skipped)
		lines = append(lines, cli.Short(line, columns-1))
	}
	return lines
}

func (p *progress) draw(lines []string) {
	up := ""
	if p.lines > 1 {
		up = fmt.Sprintf("\x1b[%dA", p.lines-1)
	}
	p.last, p.lines = strings.Join(lines, "\n\x1b[K"), len(lines)
	_, _ = fmt.Fprintf(p.term.Err, "%s\r\x1b[K%s", up, p.last) // cosmetic
}

type runExplain struct {
	runArg
	Item string `help:"Explain the items of this key only, with every attempt." placeholder:"KEY"`
}

func (r *runExplain) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Print(term, cli.ExplanationText)(cl.ExplainRun(ctx, r.Ref, client.ExplainRunParams{Item: r.Item}))
}
