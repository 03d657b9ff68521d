package admin

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/orchestrator/schedule"
	"github.com/tranchehq/tranche/workqueue"
	schedulestore "github.com/tranchehq/tranche/workqueue/schedule"
)

type scheduleCommands struct {
	Apply   applyDocument[scheduleKind]  `cmd:"" help:"Save a schedule, or change it."`
	List    scheduleList                 `cmd:"" help:"List schedules: when each is due, and the outcome of its last due time."`
	Show    scheduleShow                 `cmd:"" help:"Show an applied schedule and its state."`
	Preview schedulePreview              `cmd:"" help:"Show when a schedule, saved or in a file, is due next."`
	History scheduleHistory              `cmd:"" help:"List a schedule's due times, newest first, and the outcome of each."`
	RunNow  scheduleRunNow               `cmd:"" help:"Start a run of a schedule immediately."`
	Pause   pauseDocument[scheduleKind]  `cmd:"" help:"Pause a schedule: due times start nothing until it is resumed."`
	Resume  resumeDocument[scheduleKind] `cmd:"" help:"Resume a schedule: it continues with its next due time."`
	Delete  deleteDocument[scheduleKind] `cmd:"" help:"Delete a schedule; its runs continue."`
}

type scheduleKind struct{}

func (scheduleKind) documents() *documents {
	return &documents{
		noun: "schedule", most: schedule.MaxBytes, waits: "due time", dropped: "; its runs continue",
		parse: func(name string, text []byte) error { _, err := schedule.Parse(name, text); return err },
		apply: func(ctx context.Context, cl *client.Client, name string, text io.Reader) (client.AppliedDocument, error) {
			return cl.ApplySchedule(ctx, client.ApplyScheduleParams{Name: name}, cli.YAML, text)
		},
		next: func(a *client.AppliedDocument) string {
			if a.NextDue == nil {
				return "it is never due"
			}
			return "due next " + cli.Moment(*a.NextDue)
		},
		pause: (*client.Client).PauseSchedule, resume: (*client.Client).ResumeSchedule,
		drop: (*client.Client).DeleteSchedule,
	}
}

type scheduleList struct{ namesPage }

func (l *scheduleList) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	list, err := cl.ListSchedules(ctx, client.ListSchedulesParams(l.namesPage))
	return (&cli.List[client.ScheduleSummary]{
		Columns: "SCHEDULE|STATE|WHEN|ZONE|PLAN|NEXT|LAST|RUNNING",
		Row: func(s *client.ScheduleSummary) []any {
			next, last := cli.MomentOrNever(s.NextDue), "-"
			if s.State == workqueue.DocumentPaused {
				next = "paused"
			}
			if s.Last != nil {
				last = cli.Text("%v %v", s.Last.State, s.Last.DueAt)
			}
			return []any{s.Name, s.State, whenText(s.When), s.Zone, s.Plan, next, last, s.Running}
		},
		Empty: "no saved schedules; save one with: tranche schedule apply FILE", Next: list.Next,
	}).Print(term, list.Schedules, err)
}

func whenText(when string) string {
	if strings.HasPrefix(when, "every ") {
		when = cli.ShortTime(when)
	}
	return when
}

type scheduleShow struct{ documentName }

func (s *scheduleShow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	view, err := cl.GetSchedule(ctx, s.Name)
	return printSource(term, view.Source, err, func() {
		term.Note("schedule %s, version %d, applied %s by %s, is %s", view.Name, view.Version, cli.Moment(view.ChangedAt),
			view.ChangedBy, view.State)
		if view.State == workqueue.DocumentActive && view.NextDue != nil {
			term.Note("due next %s, in %s", cli.Moment(*view.NextDue), cli.Span(view.NextDue.Sub(view.Now)))
		}
		if view.Running+view.Waiting > 0 {
			term.Note("%s runs in progress, %s waiting to be started", cli.Count(view.Running), cli.Count(view.Waiting))
		}
		if view.Last != nil {
			term.Note("last: %s", occurrenceText(view.Last))
		}
	})
}

func occurrenceText(f *client.Occurrence) string {
	run := cli.If(f.Run != nil, ", run %v", cli.ShortRun(f.Run)) +
		cli.If(f.Run != nil && f.RunState != "", " %v", f.RunState)
	return cli.Text("%v %v%v%v", f.DueAt, f.State, run, cli.If(f.Reason != "", ": %v", f.Reason))
}

type schedulePreview struct {
	Schedule string `arg:"" help:"A saved schedule, or a YAML or JSON file with one; - is standard input."`
	Count    int    `default:"20" within:"1,1000" help:"How many due times, at most 1000." placeholder:"N"`
}

func (p *schedulePreview) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	times, err := p.times(ctx, cl, term)
	term.Warn(times.Warnings)
	return cli.Print(term, timesText)(times, err)
}

func (p *schedulePreview) times(
	ctx context.Context, cl *client.Client, term *cli.Console,
) (client.ScheduleTimes, error) {
	if p.Schedule != "-" && !cli.IsPlanFile(p.Schedule) {
		return cl.ListScheduleTimes(ctx, p.Schedule, client.ListScheduleTimesParams{Count: p.Count})
	}
	return cli.Apply(term, "schedule", p.Schedule, schedule.MaxBytes, schedule.Parse,
		func(name string, text io.Reader) (client.ScheduleTimes, error) {
			return cl.PreviewSchedule(ctx, client.PreviewScheduleParams{Name: name, Count: p.Count}, cli.YAML, text)
		})
}

func timesText(times *client.ScheduleTimes, room int) string {
	if len(times.Times) == 0 {
		return cli.Text("schedule %v is never due again\n", times.Name)
	}
	columns := "DUE IN " + cli.EscapeControl(times.Zone) + "|UTC|STARTS"
	if slices.ContainsFunc(times.Times, func(f client.Firing) bool { return f.DoneBy != nil }) {
		columns += "|DONE BY (UTC)"
	}
	t := cli.NewTable(columns, room)
	for _, f := range times.Times {
		later, by := f.Start.Sub(f.Due), ""
		if f.DoneBy != nil {
			by = f.DoneBy.UTC().Format(time.DateTime)
		}
		t.Row(f.Local, f.Due.UTC().Format(time.DateTime), cmp.Or(cli.If(later > 0, "%v later", cli.Span(later)), "then"), by)
	}
	return t.String()
}

type scheduleHistory struct {
	documentName
	occurrencesPage
}

type occurrencesPage struct {
	State  string    `enum:",due,queued,starting,started,skipped,missed,failed" default:"" help:"Only those that are due, queued, starting, started, skipped, missed or failed." placeholder:"STATE"`
	Before time.Time `help:"Only those before this time." placeholder:"TIME"`
	Limit  int       `default:"50" within:"1,500" help:"How many, at most 500." placeholder:"N"`
}

func (f *scheduleHistory) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	list, err := cl.ListOccurrences(ctx, f.Name, client.ListOccurrencesParams(f.occurrencesPage))
	return (&cli.List[client.Occurrence]{
		Columns: "DUE|KIND|STATE|RUN|RUN IS|WHY",
		Row: func(o *client.Occurrence) []any {
			return []any{o.DueAt, o.Kind, o.State, cli.ShortRun(o.Run), cli.OrDash(o.RunState),
				whyOccurrence(o, time.Now())}
		},
		Empty: "schedule " + cli.EscapeControl(f.Name) + " has no such due time yet", Next: list.Next, Before: true,
	}).Print(term, list.Occurrences, err)
}

// whyOccurrence explains an occurrence's state, and when it continues if known.
func whyOccurrence(o *client.Occurrence, now time.Time) string {
	state, why := schedulestore.OccurrenceState(o.State), o.Reason
	switch {
	case o.LateAction != "":
		return "late: " + o.LateAction
	case state == schedulestore.OccurrenceStarting && why == "" && o.BeganAt != nil:
		why = cli.Text("being loaded since %v%v", o.BeganAt, cli.If(o.Attempts > 1, ", attempt %v", o.Attempts))
	case state == schedulestore.OccurrenceWaiting && why == "" && o.StartAt.After(o.DueAt):
		why = cli.Text("starts %v (window or jitter)", o.StartAt)
	case o.EndedAt == nil && why != "" && o.StartAt.After(now):
		why += cli.Text("; not before %v", o.StartAt)
	}
	return cmp.Or(why, cli.If(o.AskedBy != "", "asked by %v", o.AskedBy))
}

type scheduleRunNow struct {
	documentName
	Wait time.Duration `default:"30s" within:"0s," help:"How long to wait until the leader has started it (${default}); 0 does not wait." placeholder:"TIME"`
}

func (r *scheduleRunNow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	o, err := cl.RunScheduleNow(ctx, r.Name)
	if err != nil {
		return err
	}
	if err := r.await(ctx, cl, &o); err != nil {
		return err
	}
	state, name := schedulestore.OccurrenceState(o.State), cli.EscapeControl(r.Name)
	failed := state == schedulestore.OccurrenceFailed || state == schedulestore.OccurrenceMissed
	switch {
	case term.JSON:
		return cli.FailIf(failed, cli.ExitOther, term.Document(o))
	case failed:
		return fmt.Errorf("schedule %s: the run %s: %s", r.Name, o.State, o.Reason)
	case state == schedulestore.OccurrenceStarted:
		return term.Printf("schedule %s has started a run; follow it with: tranche run watch %s\n", name,
			cli.ShortRun(o.Run))
	case state == schedulestore.OccurrenceSkipped:
		return term.Printf("schedule %s has skipped it: %s\n", name, cli.EscapeControl(o.Reason))
	}
	return term.Printf("schedule %s has not started it yet, it is %s%s; see its outcome with: "+
		"tranche schedule history %s\n", name, o.State, cli.If(o.Reason != "", ": %v", o.Reason), name)
}

func (r *scheduleRunNow) await(ctx context.Context, cl *client.Client, o *client.Occurrence) error {
	return cli.Await(ctx, r.Wait, func() (known bool, err error) {
		list, err := cl.ListOccurrences(ctx, r.Name, client.ListOccurrencesParams{
			Before: o.DueAt.Add(time.Microsecond), Limit: 1,
		})
		if err == nil && len(list.Occurrences) == 1 && list.Occurrences[0].DueAt.Equal(o.DueAt) {
			*o = list.Occurrences[0]
		}
		return o.EndedAt != nil || schedulestore.OccurrenceState(o.State) == schedulestore.OccurrenceQueued, err
	})
}
