package runs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/forecast"
)

type runForecast struct {
	runArg
	Set       []string `sep:"none" help:"Suppose a setting of a step: in_flight, chunk, rate, or the budget of its endpoint; repeatable." placeholder:"STEP.NAME=VALUE"`
	Instances []string `sep:"none" help:"Suppose N instances of a step's service." placeholder:"STEP=N"`
	Rate      string   `help:"Suppose this rate of each step, in items a second." placeholder:"N"`
	Priority  string   `help:"Suppose this priority of the run." placeholder:"N"`
	Without   []string `help:"Suppose that this other run did not exist." placeholder:"RUN"`
}

func (r *runForecast) Validate() error {
	for _, change := range r.Set {
		if err := forecast.CheckSet(change); err != nil {
			return err
		}
	}
	return nil
}

func (r *runForecast) changes() []string {
	all := append([]string{}, r.Set...)
	for _, given := range r.Instances {
		step, number, _ := strings.Cut(given, "=")
		all = append(all, step+".instances="+number)
	}
	if r.Rate != "" {
		all = append(all, "rate="+r.Rate)
	}
	if r.Priority != "" {
		all = append(all, "priority="+r.Priority)
	}
	for _, run := range r.Without {
		all = append(all, "without="+run)
	}
	return all
}

func (r *runForecast) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	found, err := cl.GetForecast(ctx, r.Ref, client.GetForecastParams{Change: r.changes()})
	if refused, ok := errors.AsType[*client.ProblemError](err); ok { // the server knows no flags
		for _, change := range r.Set {
			refused.Detail = strings.Replace(refused.Detail, fmt.Sprintf("change %q:", change), "--set "+change+":", 1)
		}
	}
	return cli.Print(term, forecastsText)(found, err)
}

func forecastsText(found *client.Forecasts, room int) string {
	t := cli.NewTable("IF|ENDS|BOUND BY", room)
	for i := range found.Variants {
		v := &found.Variants[i]
		name := "unchanged"
		if len(v.Changes) > 0 {
			name = strings.Join(v.Changes, ", ")
		}
		t.Row(name, forecastText(&v.Forecast), v.Forecast.BoundBy)
	}
	text := t.String()
	if steps := found.Variants[0].Steps; len(steps) > 1 {
		t := cli.NewTable("STEP|ENDS", 0)
		for i := range steps {
			f := client.Forecast{P10: at(found.At, steps[i].P10Seconds), P50: at(found.At, steps[i].P50Seconds),
				P90: at(found.At, steps[i].P90Seconds)}
			when := "ended"
			if steps[i].P90Seconds > 0 {
				when = ends(&f, clock)
			}
			t.Row(steps[i].Step, when)
		}
		text += "\nunchanged, and without waiting for anyone\n" + t.String()
	}
	if len(found.Variants) > 1 {
		text += "\nNothing was changed. A service is assumed to keep its speed with more requests in flight.\n"
	}
	return text
}

func at(from time.Time, seconds float64) *time.Time {
	return new(from.Add(cli.Seconds(seconds)))
}

// forecastText says when a run ends, or what it waits for and its duration after that, or why there is no forecast.
func forecastText(f *client.Forecast) string {
	switch {
	case f.WhyNot != "":
		return "not yet: " + cli.EscapeControl(f.WhyNot)
	case f.P50 != nil:
		return ends(f, cli.Moment)
	case f.Then == nil:
		return "not yet"
	}
	text := "waits for " + cli.EscapeControl(f.WaitsFor)
	if f.WaitsFrom != nil {
		text += " from about " + cli.Moment(*f.WaitsFrom)
	}
	return text + ", then " + spanText(f.Then)
}

// ends formats the median end and its range.
func ends(f *client.Forecast, say func(time.Time) string) string {
	if clock(*f.P10) == clock(*f.P90) {
		return say(*f.P50)
	}
	return say(*f.P50) + " (" + band(f) + ")"
}

func band(f *client.Forecast) string {
	low, high := clock(*f.P10), clock(*f.P90)
	if low == high {
		return low
	}
	return low + " to " + high
}

// clock formats a time, with the date if it is far off and with seconds if it is soon.
func clock(t time.Time) string {
	t = t.Local()
	switch soon := time.Until(t); {
	case soon < 10*time.Minute:
		return t.Format("15:04:05")
	case soon < 18*time.Hour: // unambiguous without the date
		return t.Format("15:04")
	}
	return t.Format("Jan 2 15:04")
}

func spanText(s *client.Span) string {
	low, high := s.P10Seconds, s.P90Seconds
	unit, by := "s", 1.0
	switch {
	case high >= 3*3600:
		unit, by = "h", 3600
	case high >= 180:
		unit, by = "min", 60
	}
	from, to := fmt.Sprintf("%.0f", low/by), fmt.Sprintf("%.0f", high/by)
	if unit == "h" {
		from, to = fmt.Sprintf("%.1f", low/by), fmt.Sprintf("%.1f", high/by)
	}
	if from == to {
		return to + " " + unit
	}
	return from + " to " + to + " " + unit
}

// endsText is when a run ends, and whether that is before its deadline.
func endsText(run *client.RunSummary) string {
	text, by := endText(run), run.DoneBy
	if by == nil || run.State == "cancelled" || run.FinishedAt != nil && !run.FinishedAt.After(*by) {
		return text
	}
	ended := time.Now()
	if run.FinishedAt != nil {
		ended = *run.FinishedAt
	}
	switch late := ended.Sub(*by); {
	case late > 0:
		return text + ", " + cli.Span(late) + " late"
	case run.AtRisk != nil:
		return text + ", " + run.AtRisk.Late + " late for " + clock(*by)
	}
	return text + ", to be done by " + clock(*by)
}

func endText(run *client.RunSummary) string {
	f := run.Forecast
	switch {
	case run.FinishedAt != nil:
		return cli.Moment(*run.FinishedAt)
	case f == nil:
		return ""
	case f.P50 != nil:
		return ends(f, clock)
	case f.Then != nil:
		if f.WaitsFrom != nil {
			return "waits from " + clock(*f.WaitsFrom) + ", then " + spanText(f.Then)
		}
		return "it waits, then " + spanText(f.Then)
	}
	return "not yet"
}
