package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/orchestrator/schedule"
	schedulestore "github.com/tranchehq/tranche/workqueue/schedule"
)

type scheduleCommands struct {
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
func (a *scheduleApply) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	file, err := readText("schedule", a.File, term.in, schedule.MaxBytes)
	if err != nil {
		return err
	}
	applied, err := cl.ApplySchedule(ctx, client.ApplyScheduleParams{Name: file.name}, "application/yaml",
		strings.NewReader(file.text), term.keep())
	if err != nil {
		return explainSchedule(&file, err)
	}
	for _, w := range applied.Warnings {
		term.note("%s", w)
	}
	if term.json {
		return term.sent()
	}
	due := "it is never due"
	switch {
	case applied.State == schedulestore.SchedulePaused:
		due = "it is paused; go on with: tranche schedule resume " + inert(applied.Name)
	case applied.NextDue != nil:
		due = "due next " + moment(*applied.NextDue)
	}
	switch {
	case applied.Unchanged:
		return term.printf("schedule %s is unchanged: version %d, applied %s by %s; %s\n", inert(applied.Name),
			applied.Version, moment(applied.ChangedAt), inert(applied.ChangedBy), due)
	case applied.Previous > 0:
		return term.printf("schedule %s is version %d now, after version %d; %s\n", inert(applied.Name), applied.Version,
			applied.Previous, due)
	}
	return term.printf("schedule %s is on record, version %d; %s\n", inert(applied.Name), applied.Version, due)
}

// explainSchedule names the file, and the line in it, when the server refused the schedule for what stands in it.
func explainSchedule(file *textFile, err error) error {
	refused, ok := errors.AsType[*client.ProblemError](err)
	if !ok || refused.Status != http.StatusUnprocessableEntity {
		return err
	}
	_, wrong := schedule.Parse(file.name, []byte(file.text))
	if bad, ok := errors.AsType[*strictyaml.Error](wrong); ok {
		bad.Name = file.path
		return bad
	}
	return fmt.Errorf("%s: %w", file.path, err)
}

type scheduleList struct {
	Limit int `default:"100" help:"How many, at most 500." placeholder:"N"`
}

// Validate is called by kong.
func (l *scheduleList) Validate() error {
	return within("--limit", &l.Limit, schedulestore.MaxSchedules)
}

// Run lists schedules.
func (l *scheduleList) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	list, err := cl.ListSchedules(ctx, client.ListSchedulesParams{Limit: l.Limit}, term.keep())
	if err != nil {
		return err
	}
	if term.json {
		return term.sent()
	}
	if len(list.Schedules) == 0 {
		return term.printf("no schedules on record; put one there with: tranche schedule apply FILE\n")
	}
	return term.printf("%s", schedulesText(list.Schedules, list.Next != "", term.room()))
}

func schedulesText(list []client.ScheduleSummary, more bool, room int) string {
	t := table{room: room}
	t.row("SCHEDULE", "STATE", "WHEN", "ZONE", "PLAN", "NEXT", "LAST", "RUNNING")
	for i := range list {
		s := &list[i]
		next := momentOrNever(s.NextDue)
		if s.State == schedulestore.SchedulePaused {
			next = "paused"
		}
		last := "-"
		if s.Last != nil {
			last = string(s.Last.State) + " " + moment(s.Last.DueAt)
		}
		t.row(inert(s.Name), s.State, inert(whenText(s.When)), inert(s.Zone), inert(s.Plan), next, last, count(s.Running))
	}
	text := t.String()
	if more {
		text += "there are more: --limit shows up to 500\n"
	}
	return text
}

// whenText leaves out of an interval what is zero: every 1h, not every 1h0m0s.
func whenText(when string) string {
	if strings.HasPrefix(when, "every ") {
		when = shortTime(when)
	}
	return when
}

type scheduleShow struct {
	Name string `arg:"" help:"The schedule's name."`
}

// Run prints a schedule as it was applied; how it stands goes to the person beside it.
func (s *scheduleShow) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	view, err := cl.GetSchedule(ctx, s.Name, term.keep())
	if err != nil {
		return err
	}
	if term.json {
		return term.sent()
	}
	term.note("schedule %s, version %d, applied %s by %s, is %s", view.Name, view.Version, moment(view.ChangedAt),
		view.ChangedBy, view.State)
	if view.State == schedulestore.ScheduleActive && view.NextDue != nil {
		term.note("due next %s, in %s", moment(*view.NextDue), span(view.NextDue.Sub(view.Now)))
	}
	if view.Running+view.Waiting > 0 {
		term.note("%s runs under way, %s waiting to be started", count(view.Running), count(view.Waiting))
	}
	if view.Last != nil {
		term.note("last: %s", fireText(view.Last))
	}
	return term.printf("%s\n", strings.TrimRight(view.Source, "\n"))
}

// fireText is what became of a due time, in a line.
func fireText(f *client.Fire) string {
	text := fmt.Sprintf("%s %s", moment(f.DueAt), f.State)
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

// Validate is called by kong.
func (p *schedulePreview) Validate() error { return within("--count", &p.Count, 1000) }

// Run shows the next due times.
func (p *schedulePreview) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	times, err := p.times(ctx, cl, term)
	if err != nil {
		return err
	}
	for _, w := range times.Warnings {
		term.note("%s", w)
	}
	if term.json {
		return term.sent()
	}
	if len(times.Times) == 0 {
		return term.printf("schedule %s is never due again\n", inert(times.Name))
	}
	return term.printf("%s", timesText(&times, term.room()))
}

func (p *schedulePreview) times(ctx context.Context, cl *client.Client, term *console) (client.ScheduleTimes, error) {
	if p.Schedule != "-" && !isPlanFile(p.Schedule) {
		return cl.ListScheduleTimes(ctx, p.Schedule, client.ListScheduleTimesParams{Count: p.Count}, term.keep())
	}
	file, err := readText("schedule", p.Schedule, term.in, schedule.MaxBytes)
	if err != nil {
		return client.ScheduleTimes{}, err
	}
	times, err := cl.PreviewSchedule(ctx, client.PreviewScheduleParams{Name: file.name, Count: p.Count},
		"application/yaml", strings.NewReader(file.text), term.keep())
	if err != nil {
		err = explainSchedule(&file, err)
	}
	return times, err
}

const utcLayout = "2006-01-02 15:04:05"

func timesText(times *client.ScheduleTimes, room int) string {
	t := table{room: room}
	doneBy := false
	for i := range times.Times {
		doneBy = doneBy || times.Times[i].DoneBy != nil
	}
	head := []string{"DUE IN " + inert(times.Zone), "UTC", "STARTS"}
	if doneBy {
		head = append(head, "DONE BY (UTC)")
	}
	t.row(head...)
	for i := range times.Times {
		f := &times.Times[i]
		starts := "then"
		if later := f.Start.Sub(f.Due); later > 0 {
			starts = span(later) + " later"
		}
		row := []string{inert(f.Local), f.Due.UTC().Format(utcLayout), starts}
		if doneBy {
			by := "-"
			if f.DoneBy != nil {
				by = f.DoneBy.UTC().Format(utcLayout)
			}
			row = append(row, by)
		}
		t.row(row...)
	}
	return t.String()
}
