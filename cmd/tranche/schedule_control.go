package main

import (
	"context"
	"fmt"
	"time"

	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/schedule"
)

type scheduleFires struct {
	Name  string `arg:"" help:"The schedule's name."`
	State string `enum:",due,queued,starting,started,skipped,missed,failed" default:"" help:"Only those that are due, queued, starting, started, skipped, missed or failed." placeholder:"STATE"`
	Limit int    `default:"50" help:"How many, at most 500." placeholder:"N"`
}

// Validate is called by kong.
func (f *scheduleFires) Validate() error { return within("--limit", &f.Limit, schedule.MaxFires) }

// Run lists what became of due times.
func (f *scheduleFires) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	list, err := cl.ListFires(ctx, f.Name, client.ListFiresParams{State: f.State, Limit: f.Limit}, term.keep())
	if err != nil {
		return err
	}
	if term.json {
		return term.sent()
	}
	if len(list.Fires) == 0 {
		return term.printf("schedule %s has no such due time yet\n", inert(f.Name))
	}
	t := table{room: term.room()}
	t.row("DUE", "KIND", "STATE", "RUN", "RUN IS", "WHY")
	for i := range list.Fires {
		fire := &list.Fires[i]
		t.row(moment(fire.DueAt), string(fire.Kind), string(fire.State), shortRun(fire.Run), orDash(fire.RunState),
			short(inert(whyFire(fire, time.Now())), 200))
	}
	text := t.String()
	if list.Next != nil {
		text += "there are more: --limit shows up to 500\n"
	}
	return term.printf("%s", text)
}

// whyFire says why a fire is as it is, and when it goes on if that is known.
func whyFire(fire *client.Fire, now time.Time) string {
	state, why := schedule.FireState(fire.State), fire.Reason
	switch {
	case fire.Late != "":
		return "late: " + fire.Late
	case state == schedule.FireStarting && why == "" && fire.BeganAt != nil:
		why = "being loaded since " + moment(*fire.BeganAt)
		if fire.Attempts > 1 {
			why += fmt.Sprintf(", attempt %d", fire.Attempts)
		}
	case state == schedule.FireWaiting && why == "" && fire.StartAt.After(fire.DueAt):
		why = "starts " + moment(fire.StartAt) + " (window or jitter)"
	case state == schedule.FireWaiting && why != "" && fire.StartAt.After(now):
		why += "; not before " + moment(fire.StartAt)
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
	return inert(shortID(*id))
}

type scheduleRunNow struct {
	Name string        `arg:"" help:"The schedule's name."`
	Wait time.Duration `default:"30s" help:"How long to wait until the leader has started it (${default}); 0 does not wait." placeholder:"TIME"`
}

// Validate is called by kong.
func (r *scheduleRunNow) Validate() error {
	if r.Wait < 0 {
		return fmt.Errorf("--wait is %s; it must not be negative", r.Wait)
	}
	return nil
}

// Run asks for a run and says what became of it.
func (r *scheduleRunNow) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	fire, err := cl.RunScheduleNow(ctx, r.Name, term.keep())
	if err != nil {
		return err
	}
	if r.Wait > 0 {
		if fire, err = r.await(ctx, cl, fire); err != nil {
			return err
		}
	}
	state := schedule.FireState(fire.State)
	if term.json {
		if err = term.document(fire); err == nil && (state == schedule.FireFailed || state == schedule.FireMissed) {
			err = &exitError{exitOther}
		}
		return err
	}
	switch state {
	case schedule.FireStarted:
		return term.printf("schedule %s has started a run; follow it with: tranche run watch %s\n", inert(r.Name),
			shortRun(fire.Run))
	case schedule.FireFailed, schedule.FireMissed:
		return fmt.Errorf("schedule %s: the run %s: %s", r.Name, fire.State, fire.Reason)
	case schedule.FireSkipped:
		return term.printf("schedule %s has skipped it: %s\n", inert(r.Name), inert(fire.Reason))
	case schedule.FireWaiting, schedule.FireQueued, schedule.FireStarting:
	}
	why := ""
	if fire.Reason != "" {
		why = ": " + inert(fire.Reason)
	}
	return term.printf("schedule %s has not started it yet, it is %s%s; see what becomes of it with: "+
		"tranche schedule fires %s\n", inert(r.Name), fire.State, why, inert(r.Name))
}

// await looks until the fire has ended, or waits for something.
func (r *scheduleRunNow) await(ctx context.Context, cl *client.Client, fire client.Fire) (client.Fire, error) {
	end := time.After(r.Wait)
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		list, err := cl.ListFires(ctx, r.Name, client.ListFiresParams{
			Before: fire.DueAt.Add(time.Microsecond), Limit: 1,
		})
		if err != nil {
			return fire, err
		}
		if len(list.Fires) == 1 && list.Fires[0].DueAt.Equal(fire.DueAt) {
			fire = list.Fires[0]
		}
		if fire.EndedAt != nil || schedule.FireState(fire.State) == schedule.FireQueued {
			return fire, nil
		}
		select {
		case <-ctx.Done():
			return fire, ctx.Err()
		case <-end:
			return fire, nil
		case <-tick.C:
		}
	}
}

type schedulePause struct {
	Name string `arg:"" help:"The schedule's name."`
}

// Run pauses a schedule.
func (p *schedulePause) Run(ctx context.Context, term *console) error {
	return controlSchedule(ctx, term, p.Name, (*client.Client).PauseSchedule, func(c *client.ControlledSchedule) string {
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

// Run resumes a schedule.
func (r *scheduleResume) Run(ctx context.Context, term *console) error {
	return controlSchedule(ctx, term, r.Name, (*client.Client).ResumeSchedule, func(c *client.ControlledSchedule) string {
		text := "goes on"
		if c.Unchanged {
			text = "was not paused"
		}
		return text + "; due next " + momentOrNever(c.NextDue)
	})
}

type scheduleDelete struct {
	Name string `arg:"" help:"The schedule's name."`
}

// Run deletes a schedule.
func (d *scheduleDelete) Run(ctx context.Context, term *console) error {
	return controlSchedule(ctx, term, d.Name, (*client.Client).DeleteSchedule, func(c *client.ControlledSchedule) string {
		text := "is deleted; its runs go on"
		if c.Waiting > 0 {
			text += fmt.Sprintf(", and %s that waited are not started", count(c.Waiting))
		}
		return text
	})
}

func waitingText(text string, waiting int64) string {
	if waiting == 0 {
		return text
	}
	return fmt.Sprintf("%s; %s that are due wait for it", text, count(waiting))
}

// controlSchedule does something to a schedule, and says what became of it.
func controlSchedule(
	ctx context.Context, term *console, name string,
	do func(*client.Client, context.Context, string, ...client.CallOption) (client.ControlledSchedule, error),
	say func(*client.ControlledSchedule) string,
) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	done, err := do(cl, ctx, name, term.keep())
	if err != nil {
		return err
	}
	if term.json {
		return term.sent()
	}
	return term.printf("schedule %s %s\n", inert(done.Name), say(&done))
}
