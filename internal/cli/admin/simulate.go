package admin

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/forecast"
)

type simulateCommand struct {
	Plan    string   `arg:"" help:"A plan file in YAML, - for standard input, or a saved plan: NAME or NAME@VERSION."`
	Items   int64    `required:"" within:"1,1000000000" help:"How many items the run has." placeholder:"N"`
	Latency []string `sep:"none" help:"Duration of a step's requests, and by how much it varies: send=200ms or send=200ms±50ms; repeatable." placeholder:"STEP=TIME"`
	Retries []string `sep:"none" help:"Share of a step's items that are retried, like send=2%; repeatable." placeholder:"STEP=SHARE"`
	Profile string   `help:"Take latencies, chunks and retries without a flag from this earlier run." placeholder:"RUN"`
	Set     []string `sep:"none" help:"Suppose a setting of a step: in_flight, chunk, rate, or the budget of its endpoint; repeatable." placeholder:"STEP.NAME=VALUE"`
	Slow    []string `sep:"none" help:"A step's service is slower for a while: send=2x@03:00+20m; repeatable." placeholder:"STEP=FACTORx@TIME+SPAN"`
	Outage  []string `sep:"none" help:"A step's service does not answer for a while: send@03:00+20m; repeatable." placeholder:"STEP@TIME+SPAN"`
	Start   string   `default:"now" help:"Start of the run: now, the next 22:00, or 2026-01-31T22:00." placeholder:"TIME"`
	DoneBy  string   `help:"Report whether the run ends by the first such time after its start." placeholder:"TIME"`
}

type simulation struct {
	Plan   string     `json:"plan"`
	Items  int64      `json:"items"`
	Starts time.Time  `json:"starts"`
	DoneBy *time.Time `json:"done_by,omitempty"`
	Met    string     `json:"met,omitempty"` // yes: in 90% of the simulations; likely: in 50%; no
	*forecast.Rehearsal
	Supposed []string `json:"supposed"`
}

// chartColumns is the width of the progress lines.
const chartColumns = 60

// Run calls no server unless a saved plan or a profile is named.
func (s *simulateCommand) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	plan, err := (&planTypes{Plan: s.Plan}).read(ctx, term, cl)
	if err != nil {
		return err
	}
	out := &simulation{Plan: plan.Name, Items: s.Items}
	if out.Starts, err = clockTime("--start", s.Start, time.Now()); err != nil {
		return err
	}
	network, err := s.network(ctx, cl, plan, out)
	if err != nil {
		return err
	}
	if out.Rehearsal, err = network.Rehearse(ctx, chartColumns); err != nil {
		return fmt.Errorf("simulate plan %s: %w", plan.Name, err)
	}
	if text := cmp.Or(s.DoneBy, plan.DoneBy); text != "" {
		by, err := workqueue.DoneBy(text, out.Starts)
		if err != nil || by.Before(out.Starts) {
			if by, err = clockTime("--done-by", text, out.Starts); err != nil {
				return err
			}
		}
		out.DoneBy, out.Met = &by, "no"
		switch left := by.Sub(out.Starts).Seconds(); {
		case out.Ends.P90 <= left:
			out.Met = "yes"
		case out.Ends.P50 <= left:
			out.Met = "likely"
		}
	}
	return cli.Print(term, simulationText)(*out, nil)
}

// network is a run of the plan that has not started.
func (s *simulateCommand) network(
	ctx context.Context, cl *client.Client, plan *gather.Plan, out *simulation,
) (*forecast.Network, error) {
	sampled := plan.Canary > 0 && s.Items > int64(plan.Canary)
	n := &forecast.Network{Runs: []forecast.Run{{Name: plan.Name, Canary: sampled}}}
	at, ends, items := map[string]int{}, map[string]int{}, float64(s.Items)
	out.Supposed = []string{}
	for _, step := range plan.Ordered().Steps {
		target := step.TargetKey()
		if _, known := ends[target]; !known {
			ends[target] = len(n.Endpoints)
			n.Endpoints = append(n.Endpoints, forecast.Endpoint{Name: target})
		}
		st := forecast.Step{Name: step.Name, Endpoint: ends[target], Barrier: step.Barrier, Items: items, Ready: items,
			InFlight: step.InFlight, Rate: step.Rate, Attempts: step.MaxAttempts, Backoff: step.RetryBackoff.Seconds(),
			MaxBackoff: step.MaxBackoff.Seconds()}
		st.Cost.Chunk = float64(step.Chunk)
		for _, need := range step.Needs {
			st.Needs = append(st.Needs, at[need])
		}
		if len(st.Needs) > 0 {
			st.Ready = 0
		} else if sampled {
			st.Ready, st.Held = float64(plan.Canary), items-float64(plan.Canary)
		}
		if step.InFlightAuto {
			out.Supposed = append(out.Supposed, fmt.Sprintf("step %s: assumed at its maximum, %s requests in flight",
				step.Name, cli.Count(int64(step.InFlight))))
		}
		if step.Approval != "" {
			out.Supposed = append(out.Supposed, fmt.Sprintf("step %s is approved immediately", step.Name))
		}
		at[step.Name] = len(n.Steps)
		n.Steps = append(n.Steps, st)
	}
	if sampled && !plan.CanaryAutoApprove {
		out.Supposed = append(out.Supposed, "the canary is approved immediately")
	}
	if plan.Order.Set() {
		out.Supposed = append(out.Supposed, "items of the same value never wait for each other")
	}
	if err := s.costs(ctx, cl, n, at); err != nil {
		return nil, err
	}
	if err := s.apply(n); err != nil {
		return nil, err
	}
	return n, s.speeds(n, at, out.Starts)
}

func (s *simulateCommand) apply(n *forecast.Network) error {
	for _, change := range s.Set {
		if err := forecast.CheckSet(change); err != nil {
			return cli.Usage(err.Error())
		}
		if err := n.Apply(0, change); err != nil {
			return cli.Usage(strings.Replace(err.Error(), fmt.Sprintf("change %q:", change), "--set "+change+":", 1))
		}
	}
	return nil
}

// costs sets the cost of each step: from flags, else the profile.
func (s *simulateCommand) costs(ctx context.Context, cl *client.Client, n *forecast.Network, at map[string]int) error {
	if s.Profile != "" {
		found, err := cl.ReportRun(ctx, s.Profile, client.ReportRunParams{})
		if err != nil {
			return err
		}
		profile(n, at, found.Steps)
	}
	if err := s.latencies(n, at); err != nil {
		return err
	}
	for _, text := range s.Retries {
		step, share, err := ofStep("--retries", text, "=", at, "send=2%")
		if err != nil {
			return err
		}
		number, isPercent := strings.CutSuffix(share, "%")
		p, err := strconv.ParseFloat(number, 64)
		if err != nil || !isPercent || !(p >= 0 && p < 100) {
			return cli.Usage(fmt.Sprintf("--retries %s: invalid share %q; want 0%% to less than 100%%, like send=2%%", text,
				share))
		}
		c := &n.Steps[step].Cost
		c.Slot, c.Again = c.Slot*(1+p/100)/(1+c.Again), p/100
	}
	for i := range n.Steps {
		if st := &n.Steps[i]; !st.Cost.Known() {
			why := cmp.Or(cli.If(s.Profile != "", "--profile %v: the run has no requests of step %v", s.Profile, st.Name),
				"step "+st.Name+": the latency of its requests is unknown")
			return cli.Usage(fmt.Sprintf("%s; give --latency %s=200ms, of a request of %.0f items, or --profile RUN, an "+
				"earlier run with that step", why, st.Name, st.Cost.Chunk))
		}
	}
	return nil
}

// profile sets the costs of steps that an earlier run measured.
func profile(n *forecast.Network, at map[string]int, measured []client.StepReport) {
	for i := range measured {
		p := &measured[i]
		step, known := at[p.Name]
		if !known || p.Requests == 0 || p.P50Seconds <= 0 || p.Asked == 0 {
			continue
		}
		again := min(float64(p.Retried)/float64(max(p.Asked-p.Retried, 1)), 9)
		varies := p.P50Seconds * (math.Pow(max(p.P99Seconds/p.P50Seconds, 1), 1/2.33) - 1) // 2.33 deviations
		n.Steps[step].Cost = forecast.Assume(p.P50Seconds, varies, float64(p.Asked)/float64(p.Requests), again)
	}
}

func (s *simulateCommand) latencies(n *forecast.Network, at map[string]int) error {
	for _, text := range s.Latency {
		step, latency, err := ofStep("--latency", text, "=", at, "send=200ms±50ms")
		if err != nil {
			return err
		}
		mean, varies, _ := strings.Cut(strings.ReplaceAll(latency, "+-", "±"), "±")
		took, err := time.ParseDuration(mean)
		spread, wrong := time.ParseDuration(cmp.Or(varies, "0s"))
		if err != nil || wrong != nil || took <= 0 || spread < 0 || took > 24*time.Hour {
			return cli.Usage(fmt.Sprintf("--latency %s: invalid time %q; want one like 200ms or 200ms±50ms", text, latency))
		}
		st := &n.Steps[step]
		st.Cost = forecast.Assume(took.Seconds(), spread.Seconds(), st.Cost.Chunk, st.Cost.Again)
	}
	return nil
}

// speeds sets when services are slow or down.
func (s *simulateCommand) speeds(n *forecast.Network, at map[string]int, start time.Time) error {
	for _, text := range s.Outage {
		step, when, err := ofStep("--outage", text, "@", at, "send@03:00+20m")
		if err == nil {
			err = slowed(n, step, "--outage "+text, when, start, 0)
		}
		if err != nil {
			return err
		}
	}
	for _, text := range s.Slow {
		step, rest, err := ofStep("--slow", text, "=", at, "send=2x@03:00+20m")
		if err != nil {
			return err
		}
		factor, when, _ := strings.Cut(rest, "x@")
		times, err := strconv.ParseFloat(factor, 64)
		if err != nil || !(times >= 1 && times <= 1000) {
			return cli.Usage(fmt.Sprintf("--slow %s: invalid factor %q; want 1 to 1000 times as slow, like send=2x@03:00+20m",
				text, factor))
		}
		if err := slowed(n, step, "--slow "+text, when, start, 1/times); err != nil {
			return err
		}
	}
	return nil
}

// slowed has a step's service work at a share of its speed for a while, like 03:00+20m.
func slowed(n *forecast.Network, step int, flag, when string, start time.Time, share float64) error {
	from, span := when, ""
	if at := strings.LastIndexByte(when, '+'); at >= 0 { // there may be one in the zone of a time
		from, span = when[:at], when[at+1:]
	}
	begin, err := clockTime(flag, from, start)
	if err != nil {
		return err
	}
	long, err := time.ParseDuration(span)
	if err != nil || long <= 0 {
		return cli.Usage(fmt.Sprintf("%s: invalid span %q; want how long it lasts, like +20m", flag, span))
	}
	e, after := &n.Endpoints[n.Steps[step].Endpoint], begin.Sub(start).Seconds()
	e.Speeds = append(e.Speeds, forecast.Speed{From: after, To: after + long.Seconds(), Share: share})
	return nil
}

// ofStep cuts the name of a step from a flag.
func ofStep(flag, text, mark string, at map[string]int, like string) (step int, rest string, err error) {
	name, rest, found := strings.Cut(text, mark)
	step, known := at[name]
	switch {
	case !found:
		return 0, "", cli.Usage(fmt.Sprintf("%s %s: want one like %s", flag, text, like))
	case !known:
		names := make([]string, len(at))
		for name, i := range at {
			names[i] = name
		}
		return 0, "", cli.Usage(fmt.Sprintf("%s %s: the plan has no step %q; it has: %s", flag, text, name,
			strings.Join(names, ", ")))
	}
	return step, rest, nil
}

// clockTime is the first such time of day at or after from, or a date with a time.
func clockTime(flag, text string, from time.Time) (at time.Time, err error) {
	if text == "now" {
		return from, nil
	}
	at, err = workqueue.NextTimeOfDay(text, time.Local, from.Add(-1))
	for _, layout := range []string{"2006-01-02T15:04", "2006-01-02 15:04", time.RFC3339} {
		if err != nil {
			at, err = time.ParseInLocation(layout, text, time.Local)
		}
	}
	if err != nil || at.Before(from) {
		return from, cli.Usage(fmt.Sprintf("%s: invalid time %q; want one like 22:00, or 2026-01-31T22:00 that is not "+
			"before %s", flag, text, from.Local().Format("2006-01-02T15:04")))
	}
	return at, nil
}

func simulationText(s *simulation, room int) string {
	at := func(seconds float64) string {
		return s.Starts.Add(cli.Seconds(seconds)).Local().Format("Jan 2 15:04:05")
	}
	band := func(p forecast.Span) string { return fmt.Sprintf("%s (%s to %s)", at(p.P50), at(p.P10), at(p.P90)) }
	t := cli.NewTable("", room)
	t.Row("starts", cli.Moment(s.Starts)+", "+cli.Plural(s.Items, "item"))
	t.Row("ends", band(s.Ends)+", after "+cli.Span(cli.Seconds(s.Ends.P50)))
	t.Field("bound by", s.BoundBy)
	if s.DoneBy != nil {
		late := cli.Span(cli.Seconds(s.Ends.P50) - s.DoneBy.Sub(s.Starts))
		t.Row("done by", cli.Moment(*s.DoneBy)+": "+map[string]string{"yes": "met",
			"likely": "met in half of the simulations, not in nine of ten", "no": "late by " + late}[s.Met])
	}
	steps := cli.NewTable("STEP|BEGINS|ENDS|IDLE>|BOUND BY", room)
	chart := cli.NewTable("", 0)
	for i := range s.Steps {
		st := &s.Steps[i]
		steps.Row(st.Step, at(st.Begins), band(st.Ends), fmt.Sprintf("%.0f%%", 100*st.Idle), st.BoundBy)
		chart.Row(st.Step, progressLine(st.Progress))
	}
	supposed := cli.NewTable("", room)
	for _, what := range s.Supposed {
		supposed.Row("supposed", what)
	}
	return strings.TrimRight(t.String()+"\n"+steps.String()+"\n"+chart.String()+"\n"+supposed.String(), "\n") + "\n"
}

// progressLine draws shares from 0 to 1 as blocks of that height.
func progressLine(all []float64) string {
	blocks := []rune("·▁▂▃▄▅▆▇█")
	var b strings.Builder
	for _, share := range all {
		b.WriteRune(blocks[int(min(max(share, 0), 1)*float64(len(blocks)-1))])
	}
	return b.String()
}
