package forecast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Pace is how fast a run goes, so that it is done by its time. It never goes above a limit that a person has set.
type Pace struct {
	Run   int // index of Network.Runs
	Share int // of what it shares with equally urgent runs: that multiple of what each of those gets
	// Caps are requests in flight, for each step of the run: as few as the time allows. 0: as many as its limits do.
	Caps     []int
	P50, P90 float64 // seconds that it takes with that, if no one keeps it waiting
	Known    bool    // those are
	BoundBy  string  // as in [Forecast]
	AtRisk   bool    // it will be late
}

const (
	mostShare = 4   // others keep at least a fifth of what two would have by halves
	gentler   = 0.8 // from one cap to the next
	// A cap stays unchanged unless this share of it is enough: not every check should change it.
	muchGentler = 0.7
	// A gentle run plans to end before its deadline by this share of the time left, and by two checks of the leader or
	// that share again, whichever is less.
	early, looks = 0.05, 20.0
)

// Left is how long a run takes still, in half of the courses and in nine of ten, if no one keeps it waiting.
func (f *Forecast) Left(now time.Time) (p50, p90 float64, known bool) {
	from := 0.0
	switch {
	case f.P50 != nil:
		return f.P50.Sub(now).Seconds(), f.P90.Sub(now).Seconds(), true
	case f.Then == nil:
		return 0, 0, false
	case f.WaitsFrom != nil:
		from = f.WaitsFrom.Sub(now).Seconds()
	}
	return from + f.Then.P50, from + f.Then.P90, true
}

// Paces decides how fast each run with a done_by goes. The most urgent come first, then those with the earliest time:
// one that would be late gets more of what it shares, as long as that makes no other late; one that is
// gentle gets no more in flight than it needs, but is not capped while its end is unknown. It also returns the network
// with that.
func (n *Network) Paces(ctx context.Context, now time.Time) (all []Pace, paced *Network, err error) {
	p := pacer{Network: n.Clone(), was: n, now: now}
	var order []int
	for r := range n.Runs {
		if n.Runs[r].Timed {
			order = append(order, r)
			p.Runs[r].Share = 1
			p.setCaps(r, nil)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(n.Runs[b].Priority, n.Runs[a].Priority), cmp.Compare(n.Runs[a].DoneBy, n.Runs[b].DoneBy))
	})
	if err := p.decide(ctx, order); err != nil {
		return nil, nil, err
	}
	out := make([]Pace, len(order))
	for i, r := range order {
		if out[i] = p.at[r]; !out[i].Known {
			p.Runs[r].Share = max(n.Runs[r].Share, 1)
			p.setCaps(r, nil) // late is worse than not gentle; the limits that people set hold
		}
		out[i].Run, out[i].Share, out[i].Caps = r, p.Runs[r].Share, p.caps(r)
		out[i].AtRisk = n.Runs[r].atRisk(&out[i])
	}
	return out, p.Network, nil
}

// decide sets shares and caps. The end of runs for which there was no time counts as unknown.
func (p *pacer) decide(ctx context.Context, order []int) error {
	err := p.look(ctx)
	if err != nil {
		return err
	}
	for _, r := range order {
		if err == nil && p.at[r].Known {
			err = p.favor(ctx, r)
		}
	}
	for _, r := range order {
		if err == nil && p.at[r].Known && p.Runs[r].Gentle {
			err = p.ease(ctx, r)
		}
		p.at[r].Known = p.at[r].Known && err == nil
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// atRisk reports whether a run will be late. That is said once half of the courses are, and holds until it is early
// enough.
func (r *Run) atRisk(p *Pace) bool {
	switch {
	case !p.Known:
		return r.AtRisk
	case r.AtRisk:
		return p.P50 > r.DoneBy-max(early*r.DoneBy, looks)/2
	}
	return p.P50 > r.DoneBy
}

// pacer is a network as it would be paced.
type pacer struct {
	*Network
	was *Network
	now time.Time
	at  []Pace // when each run ends
}

func (p *pacer) look(ctx context.Context) error {
	all, err := p.predict(ctx, p.now, 1, func(r *Run) bool { return r.Timed })
	if err != nil {
		return err
	}
	p.at = make([]Pace, len(all))
	for r := range all {
		p.at[r].P50, p.at[r].P90, p.at[r].Known = all[r].Left(p.now)
		p.at[r].BoundBy = all[r].BoundBy
	}
	return nil
}

func (n *Network) caps(run int) (caps []int) {
	for i := range n.Steps {
		if n.Steps[i].Run == run {
			caps = append(caps, n.Steps[i].Cap)
		}
	}
	return caps
}

// setCaps caps the steps of a run; nil: none of them.
func (n *Network) setCaps(run int, caps []int) {
	for i := range n.Steps {
		if s := &n.Steps[i]; s.Run == run {
			if s.Cap = 0; len(caps) > 0 {
				s.Cap, caps = caps[0], caps[1:]
			}
		}
	}
}

// favor gives a run that would be late more of what it shares: the least that is enough, or else the most that brings
// something. No other run that would be on time may become late by it.
func (p *pacer) favor(ctx context.Context, run int) error {
	r, alone, before := &p.Runs[run], true, p.at
	for i := range p.Runs {
		alone = alone && (i == run || p.Runs[i].Priority != r.Priority || !p.touch(run, i))
	}
	had, best, at := p.was.Runs[run].Share, 1, before
	for share := 1; share <= mostShare; share *= 2 {
		if r.Share = share; share > 1 {
			if err := p.look(ctx); err != nil {
				return err
			}
		}
		gain := 0.98
		if share == had { // so that it does not change at every look
			gain = 0.995
		}
		if p.delays(run, before) || share > 1 && p.at[run].P50 > gain*at[run].P50 {
			continue
		}
		best, at = share, p.at
		spare := 0.0
		if share < had { // it was not enough a moment ago
			spare = early * r.DoneBy
		}
		if alone || p.at[run].P90 <= r.DoneBy-spare {
			break
		}
	}
	r.Share, p.at = best, at
	return nil
}

// touch reports whether two runs have work for the same endpoint.
func (n *Network) touch(a, b int) bool {
	for i := range n.Steps {
		for j := range n.Steps {
			s, o := &n.Steps[i], &n.Steps[j]
			if s.Run == a && o.Run == b && s.Endpoint == o.Endpoint && s.Items > s.Settled && o.Items > o.Settled {
				return true
			}
		}
	}
	return false
}

// delays reports whether another run that was on time before is late now.
func (p *pacer) delays(run int, before []Pace) bool {
	for r := range p.Runs {
		o := &p.Runs[r]
		if r != run && o.Timed && before[r].Known && before[r].P50 <= o.DoneBy && !(p.at[r].P50 <= o.DoneBy) {
			return true
		}
	}
	return false
}

// ease finds the lowest caps with which nine of ten courses are done early enough.
func (p *pacer) ease(ctx context.Context, run int) error {
	by := p.Runs[run].DoneBy
	target, before := by-early*by-min(looks, early*by), p.at
	enough := func(caps []int) (bool, error) {
		p.setCaps(run, caps)
		err := p.look(ctx)
		return err == nil && p.at[run].Known && p.at[run].P90 <= target && !p.delays(run, before), err
	}
	most := p.levels(run)
	low, high := 0, len(most) // high is more than enough, or too few
	for low < high {
		mid := (low + high) / 2
		ok, err := enough(most[len(most)-1-mid])
		if err != nil {
			return err
		}
		if ok {
			high = mid
		} else {
			low = mid + 1
		}
	}
	var caps []int
	if low < len(most) {
		caps = most[len(most)-1-low]
	}
	if had := p.was.caps(run); caps != nil && slices.Max(had) > 0 && sum(caps) >= muchGentler*sum(had) {
		switch ok, err := enough(had); {
		case err != nil:
			return err
		case ok:
			return nil
		}
	}
	p.setCaps(run, caps)
	return p.look(ctx)
}

func sum(caps []int) (all float64) {
	for _, c := range caps {
		all += float64(c)
	}
	return all
}

// levels are the caps of a run's steps that there may be, the highest first: each somewhat below the one before, and
// the first below what its limits allow.
func (p *pacer) levels(run int) (all [][]int) {
	var most []float64
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Run != run {
			continue
		}
		limit, at := s.InFlight, &p.Endpoints[s.Endpoint]
		if at.Budget > 0 {
			limit = min(limit, at.Budget)
		}
		if s.Auto && at.Auto > 0 {
			limit = min(limit, at.Auto)
		}
		most = append(most, float64(limit))
	}
	for slices.Max(most) > 1 {
		caps := make([]int, len(most))
		for i := range most {
			most[i] *= gentler
			caps[i] = max(int(math.Ceil(most[i])), 1)
		}
		all = append(all, caps)
	}
	return all
}

// Fix is a single change with which a run would be done by its time.
type Fix struct {
	Text    string `json:"text" doc:"like: budget of statement from 8 to 11"`
	Command string `json:"command,omitempty" doc:"that makes it; absent: it is made elsewhere"`
}

// fix is a change that may be one, and how to make it.
type fix struct {
	set, text, command string  // {} is replaced by its number
	from, most         float64 // 0: it has no number
}

// Fix finds the smallest single change of a run, or of what it shares, with which nine of ten courses are done by its
// time; nil: none is known. What bounds the run comes first.
func (n *Network) Fix(ctx context.Context, now time.Time, run int) (*Fix, error) {
	for _, f := range n.fixes(run) {
		number, err := n.least(ctx, now, run, &f)
		if err != nil {
			return nil, err
		}
		if number != "" {
			return &Fix{strings.ReplaceAll(f.text, "{}", number), strings.ReplaceAll(f.command, "{}", number)}, nil
		}
	}
	return nil, nil //nolint:nilnil // no change helps
}

// least is the smallest number with which a change is enough, or a word when it has none; empty: it is not.
func (n *Network) least(ctx context.Context, now time.Time, run int, f *fix) (string, error) {
	enough := func(number float64) (bool, error) {
		c := n.Clone()
		if err := c.Apply(run, strings.ReplaceAll(f.set, "{}", strconv.FormatFloat(number, 'f', -1, 64))); err != nil {
			return false, nil //nolint:nilerr // it cannot be set so
		}
		all, err := c.All(ctx, now, 1)
		if err != nil {
			return false, err
		}
		_, p90, known := all[run].Left(now)
		return known && p90 <= n.Runs[run].DoneBy, nil
	}
	if f.most == 0 {
		ok, err := enough(0)
		if !ok {
			return "", err
		}
		return "yes", nil
	}
	low, high := f.from, f.from
	for ok := false; !ok; {
		if high >= f.most {
			return "", nil
		}
		low, high = high, min(2*high, f.most)
		var err error
		if ok, err = enough(high); err != nil {
			return "", err
		}
	}
	for high-low > max(1, low/32) {
		mid := math.Ceil((low + high) / 2)
		ok, err := enough(mid)
		switch {
		case err != nil:
			return "", err
		case ok:
			high = mid
		default:
			low = mid
		}
	}
	return strconv.FormatFloat(high, 'f', -1, 64), nil
}

const (
	fixedSteps = 3   // steps for which changes are searched
	fixedRuns  = 4   // other runs that may be left out for it
	fixedBy    = 16. // times what is set now, at most
)

// fixes are the changes that may help a run: of the steps that have work waiting for the longest time, what bounds
// them; and its place among others.
func (n *Network) fixes(run int) (all []fix) {
	nominal := n.play(n.index(), nil, nil)
	steps := slices.Clone(nominal.byRun[run])
	slices.SortStableFunc(steps, func(a, b int) int {
		return cmp.Compare(nominal.steps[b].backlog, nominal.steps[a].backlog)
	})
	for _, i := range steps[:min(fixedSteps, len(steps))] {
		if nominal.steps[i].backlog > 0 {
			all = append(all, n.fixesOf(run, i, nominal.steps[i].limit)...)
		}
	}
	r, highest := &n.Runs[run], math.MinInt
	var others []fix
	for o := range n.Runs {
		other := &n.Runs[o]
		if o == run || other.Idle || other.Timed || other.Priority < r.Priority || !n.touch(run, o) {
			continue
		}
		if highest = max(highest, other.Priority); other.Namespace == r.Namespace { // others may not be seen
			others = append(others, fix{set: "without=" + other.ID, text: "pausing run " + cmp.Or(other.Name, other.ID),
				command: "tranche run pause " + other.ID})
		}
	}
	if highest > math.MinInt {
		priority := strconv.Itoa(highest + 1)
		all = append(all, fix{set: "priority=" + priority, text: fmt.Sprintf("priority from %d to %s", r.Priority, priority),
			command: "tranche run set " + r.ID + " --priority " + priority})
	}
	return append(all, others[:min(fixedRuns, len(others))]...)
}

// fixesOf are the changes of what bounds a step.
func (n *Network) fixesOf(run, step int, by limit) []fix {
	s := &n.Steps[step]
	at := &n.Endpoints[s.Endpoint]
	set := "tranche run set " + n.Runs[run].ID + " --step " + s.Name
	number := func(what, of string, from float64, command string) []fix {
		b, _ := accepted(what)
		return []fix{{set: s.Name + "." + what + "={}", text: fmt.Sprintf("%s of %s from %v to {}", what, of, from),
			command: command, from: max(from, 1), most: min(fixedBy*max(from, 1), b.most)}}
	}
	switch {
	case (by == byBudget || by == byShare) && at.Budget > 0:
		return number("budget", at.Name, float64(at.Budget), "tranche endpoints set "+at.Name+" --max-in-flight {}")
	case by == byAuto || by == byShare && s.Auto:
		return number("in_flight", s.Name, float64(at.Auto), set+" --in-flight {}")
	case by == byInFlight:
		return number("in_flight", s.Name, float64(s.InFlight), set+" --in-flight {}")
	case by == byWorkers:
		return number("instances", at.Name, float64(max(s.Cost.Instances, 1)), "")
	case by == byRate:
		return number("rate", s.Name, s.Rate, set+" --rate {}")
	}
	return nil
}
