package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/schedule"
)

type scheduleFires struct {
	Name  string `arg:"" help:"The schedule's name."`
	State string `enum:",due,queued,starting,started,skipped,missed,failed" default:"" help:"Only those that are due, queued, starting, started, skipped, missed or failed." placeholder:"STATE"`
	Limit int    `default:"50" help:"How many, at most 500." placeholder:"N"`
}

func (f *scheduleFires) Validate() error { return cli.Within("--limit", &f.Limit, schedule.MaxFires) }

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
	state, why := schedule.FireState(fire.State), fire.Reason
	switch {
	case fire.Late != "":
		return "late: " + fire.Late
	case state == schedule.FireStarting && why == "" && fire.BeganAt != nil:
		why = "being loaded since " + cli.Moment(*fire.BeganAt)
		if fire.Attempts > 1 {
			why += fmt.Sprintf(", attempt %d", fire.Attempts)
		}
	case state == schedule.FireWaiting && why == "" && fire.StartAt.After(fire.DueAt):
		why = "starts " + cli.Moment(fire.StartAt) + " (window or jitter)"
	case state == schedule.FireWaiting && why != "" && fire.StartAt.After(now):
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
	state := schedule.FireState(fire.State)
	if term.JSON {
		if err = term.Document(fire); err == nil && (state == schedule.FireFailed || state == schedule.FireMissed) {
			err = cli.Exit(cli.ExitOther)
		}
		return err
	}
	switch state {
	case schedule.FireStarted:
		return term.Printf("schedule %s has started a run; follow it with: tranche run watch %s\n", cli.Inert(r.Name),
			shortRun(fire.Run))
	case schedule.FireFailed, schedule.FireMissed:
		return fmt.Errorf("schedule %s: the run %s: %s", r.Name, fire.State, fire.Reason)
	case schedule.FireSkipped:
		return term.Printf("schedule %s has skipped it: %s\n", cli.Inert(r.Name), cli.Inert(fire.Reason))
	case schedule.FireWaiting, schedule.FireQueued, schedule.FireStarting:
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
		return fire.EndedAt != nil || schedule.FireState(fire.State) == schedule.FireQueued, err
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
