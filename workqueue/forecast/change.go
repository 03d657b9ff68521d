package forecast

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Clone returns a copy that can be changed independently.
func (n *Network) Clone() *Network {
	return &Network{slices.Clone(n.Runs), slices.Clone(n.Steps), slices.Clone(n.Endpoints)}
}

// Around returns a network of a run, as its first, and the most urgent other active runs at the same endpoints.
func (n *Network) Around(run, most int) *Network {
	runs := []int{run}
	for r := range n.Runs {
		if r != run && !n.Runs[r].Idle && n.Runs[r].Person == "" && n.touch(run, r) {
			runs = append(runs, r)
		}
	}
	slices.SortStableFunc(runs[1:], func(a, b int) int { return cmp.Compare(n.Runs[b].Priority, n.Runs[a].Priority) })
	out, at := &Network{Endpoints: slices.Clone(n.Endpoints)}, make([]int, len(n.Steps))
	for to, from := range runs[:min(len(runs), 1+most)] {
		out.Runs = append(out.Runs, n.Runs[from])
		for i, s := range n.Steps {
			if s.Run != from {
				continue
			}
			at[i], s.Run, s.Needs = len(out.Steps), to, slices.Clone(s.Needs)
			for j, need := range s.Needs {
				s.Needs[j] = at[need]
			}
			out.Steps = append(out.Steps, s)
		}
	}
	return out
}

// Apply changes the network as if a run were changed: "STEP.in_flight=32", "STEP.chunk=200", "STEP.rate=50",
// "STEP.budget=16" (of its endpoint), "STEP.instances=6" (of its service), "rate=50" (of each step), "priority=5",
// or "without=RUN" (without that other run). An error says what is accepted.
func (n *Network) Apply(run int, change string) error {
	what, value, _ := strings.Cut(change, "=")
	switch what {
	case "without":
		return n.without(run, value)
	case "priority":
		number, err := parse("priority", value)
		if err == nil {
			n.Runs[run].Priority = int(number)
		}
		return err
	}
	step, setting, of := cutLast(what)
	if _, known := accepted(setting); !known || setting == "priority" || !of && setting != "rate" {
		return fmt.Errorf("change %q: no setting %q; use STEP.in_flight, STEP.chunk, STEP.rate, STEP.budget, "+
			"STEP.instances, rate, priority or without", change, setting)
	}
	if of && !slices.Contains(n.names(run), step) {
		return fmt.Errorf("change %q: the run has no step %q; it has: %s", change, step, strings.Join(n.names(run), ", "))
	}
	number, err := parse(setting, value)
	if err != nil {
		return fmt.Errorf("change %q: %w", change, err)
	}
	for i := range n.Steps {
		if s := &n.Steps[i]; s.Run == run && (!of || s.Name == step) {
			n.set(s, setting, number)
		}
	}
	return nil
}

// CheckSet refuses a change that is not of a setting of a step or of its endpoint.
func CheckSet(change string) error {
	what, _, _ := strings.Cut(change, "=")
	_, setting, of := cutLast(what)
	if !of || !slices.Contains([]string{"in_flight", "chunk", "rate", "budget"}, setting) {
		return fmt.Errorf("--set %s: no setting %q; use in_flight, chunk, rate or budget of a step, like send.chunk=50",
			change, setting)
	}
	return nil
}

// bounds are those of a setting, as in the code that sets it.
type bounds struct {
	least, most float64
	broken      bool // it may be a fraction, and 0 for none
	want        string
}

func accepted(setting string) (b bounds, known bool) {
	switch setting {
	case "in_flight", "budget", "instances":
		return bounds{1, 10_000, false, "1 to 10000"}, true
	case "chunk":
		return bounds{1, 8192, false, "1 to 8192"}, true
	case "rate":
		return bounds{0.001, 10_000_000, true, "0.001 to 10000000, or 0 for no limit"}, true
	case "priority":
		return bounds{math.MinInt32, math.MaxInt32, false, fmt.Sprintf("%d to %d", math.MinInt32, math.MaxInt32)}, true
	}
	return b, false
}

func parse(setting, value string) (float64, error) {
	b, _ := accepted(setting)
	number, err := strconv.ParseFloat(value, 64)
	if err == nil && b.broken && number == 0 {
		return 0, nil
	}
	if err != nil || !(number >= b.least && number <= b.most) || !b.broken && number != math.Trunc(number) {
		return 0, fmt.Errorf("%s: invalid value %q; want %s", setting, value, b.want)
	}
	return number, nil
}

// cutLast separates a setting from its step's name, which may contain dots.
func cutLast(what string) (step, setting string, of bool) {
	at := strings.LastIndexByte(what, '.')
	if at < 0 {
		return "", what, false
	}
	return what[:at], what[at+1:], true
}

func (n *Network) names(run int) []string {
	var all []string
	for i := range n.Steps {
		if n.Steps[i].Run == run {
			all = append(all, n.Steps[i].Name)
		}
	}
	return all
}

func (n *Network) set(s *Step, setting string, number float64) {
	at := &n.Endpoints[s.Endpoint]
	switch setting {
	case "in_flight":
		s.InFlight, s.Auto, s.Cap = int(number), false, 0
	case "chunk":
		s.Cost = s.Cost.sized(number)
	case "rate":
		s.Rate = number
	case "budget":
		at.Budget = int(number)
	case "instances":
		at.scale(s, number)
	}
}

// sized is the cost of requests with that many items: part of their time is fixed, the rest proportional.
func (c Cost) sized(items float64) Cost {
	if c.Chunk == 0 {
		return c
	}
	longer := c.Fixed + (1-c.Fixed)*items/c.Chunk
	c.Slot *= longer * c.Chunk / items
	c.Stays = slices.Clone(c.Stays)
	for i := range c.Stays {
		c.Stays[i] *= longer
	}
	c.Chunk = items
	return c
}

// scale applies another number of instances of the service. More help only where requests wait for one.
func (e *Endpoint) scale(s *Step, instances float64) {
	by := instances / float64(max(s.Cost.Instances, 1))
	switch {
	case e.Workers > 0:
		e.Workers *= by
	case by < 1:
		e.Workers = max(s.Cost.Level, 1) * by
	}
}

// without removes another run by name, ID or the start of the ID.
func (n *Network) without(run int, ref string) error {
	others := map[string]bool{}
	var named []int
	for r := range n.Runs {
		if r == run {
			continue
		}
		other := &n.Runs[r]
		others[cmp.Or(other.Name, other.ID)] = true
		if ref != "" && ref == other.ID {
			named = []int{r}
			break
		}
		if ref != "" && ref == other.Name || len(ref) >= 4 && strings.HasPrefix(other.ID, ref) {
			named = append(named, r)
		}
	}
	switch {
	case len(named) == 1:
		for i := range n.Steps {
			if n.Steps[i].Run == named[0] {
				n.Steps[i].Settled = n.Steps[i].Items
			}
		}
		return nil
	case len(named) > 1:
		return fmt.Errorf("change without=%s: several runs are called so; give more of the id of one: %s", ref,
			strings.Join(n.called(named), ", "))
	case len(others) == 0:
		return fmt.Errorf("change without=%s: no other run asks the same endpoints", ref)
	}
	return fmt.Errorf("change without=%s: no such run asks the same endpoints; these do: %s", ref,
		strings.Join(slices.Sorted(maps.Keys(others)), ", "))
}

func (n *Network) called(runs []int) []string {
	all := make([]string, len(runs))
	for at, r := range runs {
		if all[at] = n.Runs[r].ID; n.Runs[r].Name != "" {
			all[at] += " (" + n.Runs[r].Name + ")"
		}
	}
	return all
}
