package admin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/orchestrator/schedule"
	schedulestore "github.com/tranchehq/tranche/workqueue/schedule"
)

// Schedules are the commands about schedules.
type Schedules struct {
	Apply   scheduleApply   `cmd:"" help:"Put a schedule on record, or change it."`
	List    scheduleList    `cmd:"" help:"List schedules: when each is due, and what the last due time did."`
	Show    scheduleShow    `cmd:"" help:"A schedule as it was applied, and how it stands."`
	Preview schedulePreview `cmd:"" help:"When a schedule, on record or in a file, is due next."`
	Fires   scheduleFires   `cmd:"" help:"What became of a schedule's due times, newest first."`
	RunNow  scheduleRunNow  `cmd:"" help:"Have a schedule start a run at once."`
	Pause   schedulePause   `cmd:"" help:"Let a schedule start nothing until it is resumed."`
	Resume  scheduleResume  `cmd:"" help:"End the pause of a schedule: it goes on with its next due time."`
	Delete  scheduleDelete  `cmd:"" help:"Take a schedule off the record; runs go on."`
}

type scheduleApply struct {
	File string `arg:"" help:"A schedule in YAML or JSON; - is standard input."`
}

// Run puts a schedule on record.
func (a *scheduleApply) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	file, err := cli.ReadText("schedule", a.File, term.In, schedule.MaxBytes)
	if err != nil {
		return err
	}
	applied, err := cl.ApplySchedule(ctx, client.ApplyScheduleParams{Name: file.Name}, "application/yaml",
		strings.NewReader(file.Text), term.Keep())
	if err != nil {
		return cli.Explain(&file, err, schedule.Parse)
	}
	for _, w := range applied.Warnings {
		term.Note("%s", w)
	}
	if term.JSON {
		return term.Sent()
	}
	due := "it is never due"
	switch {
	case applied.State == schedulestore.SchedulePaused:
		due = "it is paused; go on with: tranche schedule resume " + cli.Inert(applied.Name)
	case applied.NextDue != nil:
		due = "due next " + cli.Moment(*applied.NextDue)
	}
	switch {
	case applied.Unchanged:
		return term.Printf("schedule %s is unchanged: version %d, applied %s by %s; %s\n", cli.Inert(applied.Name),
			applied.Version, cli.Moment(applied.ChangedAt), cli.Inert(applied.ChangedBy), due)
	case applied.Previous > 0:
		return term.Printf("schedule %s is version %d now, after version %d; %s\n", cli.Inert(applied.Name), applied.Version,
			applied.Previous, due)
	}
	return term.Printf("schedule %s is on record, version %d; %s\n", cli.Inert(applied.Name), applied.Version, due)
}

type scheduleList struct {
	Limit int `default:"100" help:"How many, at most 500." placeholder:"N"`
}

func (l *scheduleList) Validate() error {
	return cli.Within("--limit", &l.Limit, schedulestore.MaxSchedules)
}

func (l *scheduleList) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	list, err := cl.ListSchedules(ctx, client.ListSchedulesParams{Limit: l.Limit}, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	if len(list.Schedules) == 0 {
		return term.Printf("no schedules on record; put one there with: tranche schedule apply FILE\n")
	}
	return term.Printf("%s", schedulesText(list.Schedules, list.Next != "", term.Room()))
}

func schedulesText(list []client.ScheduleSummary, more bool, room int) string {
	t := cli.Table{Room: room}
	t.Row("SCHEDULE", "STATE", "WHEN", "ZONE", "PLAN", "NEXT", "LAST", "RUNNING")
	for i := range list {
		s := &list[i]
		next := cli.MomentOrNever(s.NextDue)
		if s.State == schedulestore.SchedulePaused {
			next = "paused"
		}
		last := "-"
		if s.Last != nil {
			last = string(s.Last.State) + " " + cli.Moment(s.Last.DueAt)
		}
		t.Row(cli.Inert(s.Name), s.State, cli.Inert(whenText(s.When)), cli.Inert(s.Zone), cli.Inert(s.Plan), next, last,
			cli.Count(s.Running))
	}
	return t.Page(more)
}

// whenText leaves out of an interval what is zero: every 1h, not every 1h0m0s.
func whenText(when string) string {
	if strings.HasPrefix(when, "every ") {
		when = cli.ShortTime(when)
	}
	return when
}

type scheduleShow struct {
	Name string `arg:"" help:"The schedule's name."`
}

// Run prints a schedule as it was applied; how it stands goes to the person beside it.
func (s *scheduleShow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	view, err := cl.GetSchedule(ctx, s.Name, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	term.Note("schedule %s, version %d, applied %s by %s, is %s", view.Name, view.Version, cli.Moment(view.ChangedAt),
		view.ChangedBy, view.State)
	if view.State == schedulestore.ScheduleActive && view.NextDue != nil {
		term.Note("due next %s, in %s", cli.Moment(*view.NextDue), cli.Span(view.NextDue.Sub(view.Now)))
	}
	if view.Running+view.Waiting > 0 {
		term.Note("%s runs under way, %s waiting to be started", cli.Count(view.Running), cli.Count(view.Waiting))
	}
	if view.Last != nil {
		term.Note("last: %s", fireText(view.Last))
	}
	return term.Printf("%s\n", strings.TrimRight(view.Source, "\n"))
}

// fireText is what became of a due time, in a line.
func fireText(f *client.Fire) string {
	text := fmt.Sprintf("%s %s", cli.Moment(f.DueAt), f.State)
	if f.Run != nil {
		text += ", run " + shortRun(f.Run)
		if f.RunState != "" {
			text += " " + f.RunState
		}
	}
	if f.Reason != "" {
		text += ": " + f.Reason
	}
	return text
}

type schedulePreview struct {
	Schedule string `arg:"" help:"A schedule on record, or a file with one in YAML or JSON; - is standard input."`
	Count    int    `default:"20" help:"How many due times, at most 1000." placeholder:"N"`
}

func (p *schedulePreview) Validate() error { return cli.Within("--count", &p.Count, 1000) }

// Run shows the next due times.
func (p *schedulePreview) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	times, err := p.times(ctx, cl, term)
	if err != nil {
		return err
	}
	for _, w := range times.Warnings {
		term.Note("%s", w)
	}
	if term.JSON {
		return term.Sent()
	}
	if len(times.Times) == 0 {
		return term.Printf("schedule %s is never due again\n", cli.Inert(times.Name))
	}
	return term.Printf("%s", timesText(&times, term.Room()))
}

func (p *schedulePreview) times(ctx context.Context, cl *client.Client, term *cli.Console) (client.ScheduleTimes,
	error) {
	if p.Schedule != "-" && !cli.IsPlanFile(p.Schedule) {
		return cl.ListScheduleTimes(ctx, p.Schedule, client.ListScheduleTimesParams{Count: p.Count}, term.Keep())
	}
	file, err := cli.ReadText("schedule", p.Schedule, term.In, schedule.MaxBytes)
	if err != nil {
		return client.ScheduleTimes{}, err
	}
	times, err := cl.PreviewSchedule(ctx, client.PreviewScheduleParams{Name: file.Name, Count: p.Count},
		"application/yaml", strings.NewReader(file.Text), term.Keep())
	if err != nil {
		err = cli.Explain(&file, err, schedule.Parse)
	}
	return times, err
}

const utcLayout = "2006-01-02 15:04:05"

func timesText(times *client.ScheduleTimes, room int) string {
	t := cli.Table{Room: room}
	doneBy := false
	for i := range times.Times {
		doneBy = doneBy || times.Times[i].DoneBy != nil
	}
	head := []string{"DUE IN " + cli.Inert(times.Zone), "UTC", "STARTS"}
	if doneBy {
		head = append(head, "DONE BY (UTC)")
	}
	t.Row(head...)
	for i := range times.Times {
		f := &times.Times[i]
		starts := "then"
		if later := f.Start.Sub(f.Due); later > 0 {
			starts = cli.Span(later) + " later"
		}
		row := []string{cli.Inert(f.Local), f.Due.UTC().Format(utcLayout), starts}
		if doneBy {
			by := "-"
			if f.DoneBy != nil {
				by = f.DoneBy.UTC().Format(utcLayout)
			}
			row = append(row, by)
		}
		t.Row(row...)
	}
	return t.String()
}

type scheduleFires struct {
	Name  string `arg:"" help:"The schedule's name."`
	State string `enum:",due,queued,starting,started,skipped,missed,failed" default:"" help:"Only those that are due, queued, starting, started, skipped, missed or failed." placeholder:"STATE"`
	Limit int    `default:"50" help:"How many, at most 500." placeholder:"N"`
}

func (f *scheduleFires) Validate() error {
	return cli.Within("--limit", &f.Limit, schedulestore.MaxFires)
}

// Run lists what became of due times.
func (f *scheduleFires) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	list, err := cl.ListFires(ctx, f.Name, client.ListFiresParams{State: f.State, Limit: f.Limit}, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	if len(list.Fires) == 0 {
		return term.Printf("schedule %s has no such due time yet\n", cli.Inert(f.Name))
	}
	t := cli.Table{Room: term.Room()}
	t.Row("DUE", "KIND", "STATE", "RUN", "RUN IS", "WHY")
	for i := range list.Fires {
		fire := &list.Fires[i]
		t.Row(cli.Moment(fire.DueAt), string(fire.Kind), string(fire.State), shortRun(fire.Run), cli.OrDash(fire.RunState),
			cli.Inert(whyFire(fire, time.Now())))
	}
	return term.Printf("%s", t.Page(list.Next != nil))
}

// whyFire says why a fire is as it is, and when it goes on if that is known.
func whyFire(fire *client.Fire, now time.Time) string {
	state, why := schedulestore.FireState(fire.State), fire.Reason
	switch {
	case fire.Late != "":
		return "late: " + fire.Late
	case state == schedulestore.FireStarting && why == "" && fire.BeganAt != nil:
		why = "being loaded since " + cli.Moment(*fire.BeganAt)
		if fire.Attempts > 1 {
			why += fmt.Sprintf(", attempt %d", fire.Attempts)
		}
	case state == schedulestore.FireWaiting && why == "" && fire.StartAt.After(fire.DueAt):
		why = "starts " + cli.Moment(fire.StartAt) + " (window or jitter)"
	case state == schedulestore.FireWaiting && why != "" && fire.StartAt.After(now):
		why += "; not before " + cli.Moment(fire.StartAt)
	}
	if why == "" && fire.AskedBy != "" {
		why = "asked by " + fire.AskedBy
	}
	return why
}

func shortRun(id *string) string {
	if id == nil {
		return "-"
	}
	return cli.Inert(cli.ShortID(*id))
}

type scheduleRunNow struct {
	Name string        `arg:"" help:"The schedule's name."`
	Wait time.Duration `default:"30s" help:"How long to wait until the leader has started it (${default}); 0 does not wait." placeholder:"TIME"`
}

func (r *scheduleRunNow) Validate() error {
	if r.Wait < 0 {
		return fmt.Errorf("--wait is %s; it must not be negative", r.Wait)
	}
	return nil
}

// Run asks for a run and says what became of it.
func (r *scheduleRunNow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	fire, err := cl.RunScheduleNow(ctx, r.Name, term.Keep())
	if err != nil {
		return err
	}
	if r.Wait > 0 {
		if fire, err = r.await(ctx, cl, fire); err != nil {
			return err
		}
	}
	state := schedulestore.FireState(fire.State)
	if term.JSON {
		if err = term.Document(fire); err == nil && (state == schedulestore.FireFailed || state == schedulestore.FireMissed) {
			err = cli.Exit(cli.ExitOther)
		}
		return err
	}
	switch state {
	case schedulestore.FireStarted:
		return term.Printf("schedule %s has started a run; follow it with: tranche run watch %s\n", cli.Inert(r.Name),
			shortRun(fire.Run))
	case schedulestore.FireFailed, schedulestore.FireMissed:
		return fmt.Errorf("schedule %s: the run %s: %s", r.Name, fire.State, fire.Reason)
	case schedulestore.FireSkipped:
		return term.Printf("schedule %s has skipped it: %s\n", cli.Inert(r.Name), cli.Inert(fire.Reason))
	case schedulestore.FireWaiting, schedulestore.FireQueued, schedulestore.FireStarting:
	}
	why := ""
	if fire.Reason != "" {
		why = ": " + cli.Inert(fire.Reason)
	}
	return term.Printf("schedule %s has not started it yet, it is %s%s; see what becomes of it with: "+
		"tranche schedule fires %s\n", cli.Inert(r.Name), fire.State, why, cli.Inert(r.Name))
}

// await looks until the fire has ended, or waits for something.
func (r *scheduleRunNow) await(ctx context.Context, cl *client.Client, fire client.Fire) (client.Fire, error) {
	err := cli.Await(ctx, r.Wait, func() (known bool, err error) {
		list, err := cl.ListFires(ctx, r.Name, client.ListFiresParams{
			Before: fire.DueAt.Add(time.Microsecond), Limit: 1,
		})
		if err == nil && len(list.Fires) == 1 && list.Fires[0].DueAt.Equal(fire.DueAt) {
			fire = list.Fires[0]
		}
		return fire.EndedAt != nil || schedulestore.FireState(fire.State) == schedulestore.FireQueued, err
	})
	return fire, err
}

type schedulePause struct {
	Name string `arg:"" help:"The schedule's name."`
}

func (p *schedulePause) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return controlSchedule(ctx, term, p.Name, cl.PauseSchedule, func(c *client.ControlledSchedule) string {
		text := "is paused: nothing is started until it is resumed"
		if c.Unchanged {
			text = "was paused before"
		}
		return waitingText(text, c.Waiting)
	})
}

type scheduleResume struct {
	Name string `arg:"" help:"The schedule's name."`
}

func (r *scheduleResume) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return controlSchedule(ctx, term, r.Name, cl.ResumeSchedule, func(c *client.ControlledSchedule) string {
		text := "goes on"
		if c.Unchanged {
			text = "was not paused"
		}
		return text + "; due next " + cli.MomentOrNever(c.NextDue)
	})
}

type scheduleDelete struct {
	Name string `arg:"" help:"The schedule's name."`
}

func (d *scheduleDelete) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return controlSchedule(ctx, term, d.Name, cl.DeleteSchedule, func(c *client.ControlledSchedule) string {
		text := "is deleted; its runs go on"
		if c.Waiting > 0 {
			text += fmt.Sprintf(", and %s that waited are not started", cli.Count(c.Waiting))
		}
		return text
	})
}

func waitingText(text string, waiting int64) string {
	if waiting == 0 {
		return text
	}
	return fmt.Sprintf("%s; %s that are due wait for it", text, cli.Count(waiting))
}

// controlSchedule does something to a schedule, and says what became of it.
func controlSchedule(
	ctx context.Context, term *cli.Console, name string,
	do func(context.Context, string, ...client.CallOption) (client.ControlledSchedule, error),
	say func(*client.ControlledSchedule) string,
) error {
	done, err := do(ctx, name, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	return term.Printf("schedule %s %s\n", cli.Inert(done.Name), say(&done))
}
