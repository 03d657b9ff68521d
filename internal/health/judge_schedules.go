package health

import (
	"fmt"
	"time"

	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/schedule"
)

// schedules judges what was to be started by the clock.
func (f *facts) schedules() (all []Condition) {
	for i := range f.db.SchedulesFailed {
		s := &f.db.SchedulesFailed[i]
		what := map[schedule.FireState]string{schedule.FireMissed: "missed its time"}[s.State]
		if what == "" {
			what = "could not start its run"
		}
		all = append(all, dated(s.Since, Condition{
			Kind: ScheduleFailing, Severity: Warning, Subject: s.Schedule, Link: "/schedules",
			Title:  fmt.Sprintf("Schedule %s %s", s.Schedule, what),
			Detail: fmt.Sprintf("That of %s has no run: %s", moment(s.Due), s.Reason),
			Remedy: fmt.Sprintf("Mend that, then start it: `tranche schedule run-now %s`; the next due time that "+
				"goes well ends this, too", s.Schedule),
		}))
	}
	for i := range f.db.SchedulesStuck {
		all = append(all, f.stuck(&f.db.SchedulesStuck[i]))
	}
	for i := range f.db.SchedulesLate {
		all = append(all, Late(&f.db.SchedulesLate[i], f.at))
	}
	return all
}

func (f *facts) stuck(s *health.StuckSchedule) Condition {
	c := Condition{
		Kind: ScheduleOverdue, Severity: Critical, Subject: s.Schedule, Link: "/schedules",
		Title:  fmt.Sprintf("Schedule %s has been due for %s", s.Schedule, ago(f.at.Sub(s.Since))),
		Detail: fmt.Sprintf("No leader has taken the due time %s.", moment(s.Due)),
		Remedy: "See whether a node leads, and what its duties say: `tranche nodes`",
	}
	if s.Taken {
		c.Severity = Warning
		c.Detail = fmt.Sprintf("The run of %s is not started yet.", moment(s.Due))
		switch {
		case s.Loading != nil:
			c.Detail += fmt.Sprintf(" Its items are being loaded, for %s.", ago(f.at.Sub(*s.Loading)))
		case s.Reason != "":
			c.Detail += " The last that was heard: " + s.Reason
		}
		c.Remedy = fmt.Sprintf("It is tried again by itself; mend what it says if it says anything. "+
			"What became of it: `tranche schedule fires %s`", s.Schedule)
	}
	return dated(s.Since, c)
}

// moment is a time for people who may be anywhere.
func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") }
