// Package forecast predicts when runs will end. It models runs as a queueing network: steps that feed each other,
// endpoints with shared capacity, requests with durations, and retries. It simulates the remaining work many times,
// in amounts of items, each with random variations within what was measured, and returns quantiles. It reads neither
// a clock nor a database: times are seconds from the network's moment. The same network gives the same result.
package forecast

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Network is the current work: runs, and what they share.
type Network struct {
	Runs      []Run
	Steps     []Step // of each run in order: each after those it needs
	Endpoints []Endpoint
}

// Run is a run that has not ended.
type Run struct {
	ID, Name string // as in [Network.Apply]; the name may be empty
	Priority int
	Person   string // whose action everything waits for, like "an operator to resume it"; empty: none
	Canary   bool   // a sample goes first; the rest waits until it ends
	Approve  bool   // and until approval
	WhyNot   string // why its end cannot be predicted
	Idle     bool   // it requests nothing now, for example while loading or waiting for a person

	Timed  bool    // it must be done in DoneBy seconds; see [Network.Paces]
	DoneBy float64 // negative: it should have been
	Gentle bool    // with only as many in flight as that needs
	Share  int     // its weight among runs of equal priority; 0: 1
	AtRisk bool    // it was found that it will not be

	Namespace string // a [Fix] names no run of another one
}

// Step is a step of a run. Items are its total.
type Step struct {
	Run      int // index of Network.Runs
	Name     string
	Endpoint int   // index of Network.Endpoints
	Needs    []int // indexes of Network.Steps
	Barrier  bool  // it starts when its needed steps have ended for all items
	Gate     bool  // and it was approved

	Items, Settled float64
	Ready          float64 // claimable now
	Held           float64 // by the canary or, in a run without one, behind others in their lanes
	Out            float64 // in flight
	Retrying       float64 // waiting to be retried
	RetryMean      float64 // mean seconds until those are due
	RetryDue       float64 // seconds until the last of those is due
	Failed         float64 // share of the settled items, which later steps skip

	InFlight            int // limit of requests
	Cap                 int // the same while its run is gentle; 0: none
	Auto                bool
	Rate                float64 // items a second; 0: no limit
	Attempts            int
	Backoff, MaxBackoff float64 // seconds

	Cost Cost
}

// Endpoint is what steps share.
type Endpoint struct {
	Name        string
	Budget      int     // requests over all runs; 0: no limit
	Auto        int     // limit found by nodes for automatic steps; 0: unknown
	Rate        float64 // items a second; 0: no limit
	RequestRate float64 // requests a second; 0: no limit
	Workers     float64 // concurrent requests of its service, if others wait; 0: more than are sent
	Level       float64 // recent requests in flight of all runs; 0: unknown
	Down        string  // why nothing is sent to it
	Speeds      []Speed // times when its service is slower than measured
}

// Speed is a time, in seconds from now, when a service has a share of its usual speed; 0: it does not answer.
type Speed struct{ From, To, Share float64 }

// Forecast predicts when a run will end. Its times are kept by 10%, 50% and 90% of the simulations.
type Forecast struct {
	P10 *time.Time `json:"p10,omitempty" doc:"one in ten such runs ends before; absent: it waits, or no one knows"`
	P50 *time.Time `json:"p50,omitempty" doc:"half of them do"`
	P90 *time.Time `json:"p90,omitempty" doc:"nine in ten do"`

	BoundBy string `json:"bound_by,omitempty" doc:"what keeps it from being faster, as a sentence"`

	WaitsFor  string     `json:"waits_for,omitempty" doc:"what cannot be predicted, like an approval of step send"`
	WaitsFrom *time.Time `json:"waits_from,omitempty" doc:"when it will begin to wait for that; absent: it waits now"`
	Then      *Span      `json:"then,omitempty" doc:"how long it takes after that"`

	WhyNot string `json:"why_not,omitempty" doc:"why there is no forecast yet"`

	Made *time.Time `json:"made,omitempty" doc:"when; lists have one of the last 15 s, or older if none can be made"`
}

// Block removes the times because of an unpredictable obstacle. A waiting run keeps the duration after its wait.
func (f *Forecast) Block(why string) {
	if f != nil && (f.WaitsFor == "" || f.WaitsFrom != nil) {
		*f = Forecast{WhyNot: why}
	}
}

// Span is a predicted duration.
type Span struct {
	P10 float64 `json:"p10_seconds"`
	P50 float64 `json:"p50_seconds"`
	P90 float64 `json:"p90_seconds"`
}

// StepForecast predicts when a step will end, in seconds from now.
type StepForecast struct {
	Step string `json:"step"`
	Span
}

// Outcome is the prediction for a run.
type Outcome struct {
	Forecast
	Steps []StepForecast // empty if none is possible
}

// rounds is the number of simulations by the number of steps: large networks vary less and cost more.
func rounds(steps int) int { return min(max(2000/max(steps, 1), 20), 60) }

// All predicts each run as of now, with random variations by seed. Idle runs affect no others.
func (n *Network) All(ctx context.Context, now time.Time, seed uint64) ([]Outcome, error) {
	return n.predict(ctx, now, seed, func(*Run) bool { return true })
}

// predict is All for some of the runs; the outcome of others is zero.
func (n *Network) predict(ctx context.Context, now time.Time, seed uint64, of func(*Run) bool) ([]Outcome, error) {
	out := make([]Outcome, len(n.Runs))
	if len(n.Steps) == 0 {
		return out, ctx.Err()
	}
	why, idle, x := n.unknown(), n.idle(), n.index()
	luck := draw(len(n.Steps), rounds(len(n.Steps)), seed)
	for _, together := range n.together(func(r int) bool { return why[r] == "" && of(&n.Runs[r]) }, idle) {
		without := slices.Clone(idle)
		for _, r := range together {
			without[r] = false
		}
		c, err := n.course(ctx, x, luck, without)
		if err != nil {
			return nil, err
		}
		for _, r := range together {
			out[r] = n.tell(r, now, c)
		}
	}
	for r := range out {
		out[r].WhyNot = cmp.Or(why[r], out[r].WhyNot)
	}
	return out, nil
}

// apart is how many courses idle runs that meet are played in, at most.
const apart = 8

// together are runs that are played in the same courses: first active ones, then idle ones that do not meet, each
// as if it alone of the idle ones continued. The last course has all that are left.
func (n *Network) together(of func(run int) bool, idle []bool) (all [][]int) {
	all = [][]int{nil}
	for r := range n.Runs {
		if !of(r) {
			continue
		}
		at := 0
		if idle[r] {
			at = 1 + slices.IndexFunc(all[1:], func(others []int) bool {
				return !slices.ContainsFunc(others, func(o int) bool { return n.touch(r, o) })
			})
			at = cmp.Or(at, min(len(all), apart))
		}
		if at == len(all) {
			all = append(all, nil)
		}
		all[at] = append(all[at], r)
	}
	return all
}

// courses are the simulations: with variations, and the nominal one.
type courses struct {
	played  []*play
	nominal *play
}

func (n *Network) course(ctx context.Context, x *index, lucks [][]luck, without []bool) (c courses, err error) {
	for _, luck := range append(slices.Clone(lucks), nil) {
		if err := ctx.Err(); err != nil {
			return c, fmt.Errorf("forecast: %w", err)
		}
		c.played = append(c.played, n.play(x, luck, without))
	}
	last := len(c.played) - 1
	c.played, c.nominal = c.played[:last], c.played[last]
	return c, nil
}

// idle is, for each run, whether it requests nothing now.
func (n *Network) idle() []bool {
	idle := make([]bool, len(n.Runs))
	for r := range n.Runs {
		idle[r] = n.Runs[r].Idle || n.Runs[r].Person != ""
	}
	return idle
}

// unknown is, for each run, why its end cannot be predicted.
func (n *Network) unknown() []string {
	why := make([]string, len(n.Runs))
	for r := range n.Runs {
		if why[r] = n.Runs[r].WhyNot; why[r] == "" && n.Runs[r].Idle && n.Runs[r].Person == "" {
			why[r] = "it does not continue now"
		}
	}
	for i := range n.Steps {
		s := &n.Steps[i]
		if s.Items > s.Settled && !s.Cost.Known() && why[s.Run] == "" {
			why[s.Run] = fmt.Sprintf("of the newest requests of endpoint %s fewer than %d are of step %s, here or in earlier "+
				"runs of its plan", n.Endpoints[s.Endpoint].Name, leastRequests, s.Name)
		}
	}
	return why
}

// tell derives a forecast from simulations.
func (n *Network) tell(r int, now time.Time, c courses) Outcome {
	if i := n.stuck(r, c); i >= 0 {
		return Outcome{Forecast: Forecast{WhyNot: fmt.Sprintf("step %s cannot continue as things are", n.Steps[i].Name)}}
	}
	waitsFor, atOnce := n.waitsFor(r)
	out := Outcome{Forecast: Forecast{BoundBy: n.bound(r, c.nominal), WaitsFor: waitsFor}}
	for _, i := range c.nominal.byRun[r] {
		ended := span(c.played, func(p *play) float64 { return p.steps[i].ended })
		out.Steps = append(out.Steps, StepForecast{n.Steps[i].Name, ended})
	}
	waits := func(p *play) float64 {
		if atOnce {
			return 0
		}
		return max(p.runs[r].waits, 0)
	}
	then := span(c.played, func(p *play) float64 { return p.runs[r].ended - waits(p) })
	from := span(c.played, waits)
	if !then.finite() || !from.finite() ||
		slices.ContainsFunc(out.Steps, func(s StepForecast) bool { return !s.finite() }) {
		return Outcome{Forecast: Forecast{WhyNot: "what was measured of its requests comes to no time"}}
	}
	if waitsFor == "" {
		out.P10, out.P50, out.P90 = after(now, then.P10), after(now, then.P50), after(now, then.P90)
		return out
	}
	if out.Then = &then; from.P50 > 0 {
		out.WaitsFrom = after(now, from.P50)
	}
	return out
}

// stuck is the first step of a run that cannot progress; -1: none.
func (n *Network) stuck(r int, c courses) int {
	for _, i := range c.nominal.byRun[r] {
		if c.nominal.steps[i].stuck || slices.ContainsFunc(c.played, func(p *play) bool { return p.steps[i].stuck }) {
			return i
		}
	}
	return -1
}

func (s Span) finite() bool {
	sum := s.P10 + s.P50 + s.P90
	return !math.IsNaN(sum) && !math.IsInf(sum, 0)
}

func after(now time.Time, seconds float64) *time.Time {
	return new(now.Add(time.Duration(min(seconds, 1e9) * float64(time.Second))).Round(time.Millisecond))
}

func span(played []*play, of func(*play) float64) Span {
	all := make([]float64, len(played))
	for i, p := range played {
		all[i] = of(p)
	}
	slices.Sort(all)
	return Span{quantile(all, 0.1), quantile(all, 0.5), quantile(all, 0.9)}
}

// quantile is that of sorted numbers.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	at := q * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}

// waitsFor names what a run waits for, or will, without a known end. atOnce: it waits now.
func (n *Network) waitsFor(r int) (what string, atOnce bool) {
	run := &n.Runs[r]
	if run.Person != "" {
		return run.Person, true
	}
	var gates []string
	for i := range n.Steps {
		s := &n.Steps[i]
		if s.Run != r || s.Items <= s.Settled {
			continue
		}
		if why := n.Endpoints[s.Endpoint].Down; why != "" {
			return why, true
		}
		if s.Gate {
			gates = append(gates, "step "+s.Name)
		}
	}
	switch {
	case run.Canary && run.Approve:
		return "approval of its canary", false
	case len(gates) == 0:
		return "", false
	case len(gates) > 4:
		gates = append(gates[:3], fmt.Sprintf("%d others", len(gates)-3))
	}
	return "approval of " + strings.Join(gates, " and of "), false
}

// bound says what limits a run: the step with the longest backlog, and why.
func (n *Network) bound(r int, nominal *play) string {
	worst := -1
	for i := range n.Steps {
		if n.Steps[i].Run == r && nominal.steps[i].backlog > 0 &&
			(worst < 0 || nominal.steps[i].backlog > nominal.steps[worst].backlog) {
			worst = i
		}
	}
	if worst < 0 {
		return ""
	}
	says := []string{n.Steps[worst].Name + " is the bottleneck: " + n.limitText(worst, nominal.steps[worst].limit)}
	for i := range n.Steps {
		s, p := &n.Steps[i], &nominal.steps[i]
		if s.Run == r && i != worst && p.idle >= 0.1 && len(says) < 3 {
			says = append(says, fmt.Sprintf("%s is idle %.0f%%", s.Name, 100*p.idle))
		}
	}
	return strings.Join(says, "; ")
}

func (n *Network) limitText(i int, l limit) string {
	s, e := &n.Steps[i], &n.Endpoints[n.Steps[i].Endpoint]
	switch l {
	case byBudget:
		return fmt.Sprintf("%d requests in flight by the budget of %s", e.Budget, e.Name)
	case byShare:
		return fmt.Sprintf("it shares %s with others that are as urgent", e.Name)
	case byAuto:
		return fmt.Sprintf("%d requests in flight, which nodes found %s to take", e.Auto, e.Name)
	case byWorkers:
		return fmt.Sprintf("the service of %s works on %.0f requests concurrently, and others wait", e.Name,
			max(e.Workers, 1))
	case byRate:
		return fmt.Sprintf("%v items a second by its rate", s.Rate)
	case byEndpointRate:
		return "the rate of " + e.Name
	case byInFlight:
	}
	if s.Cap > 0 && s.Cap < s.InFlight {
		return fmt.Sprintf("%d requests in flight, which is as gentle as its time allows", s.Cap)
	}
	return fmt.Sprintf("%d requests in flight by its in_flight", s.InFlight)
}
