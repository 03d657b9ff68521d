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

// Clone returns a network that may be changed apart.
func (n *Network) Clone() *Network {
	return &Network{slices.Clone(n.Runs), slices.Clone(n.Steps), slices.Clone(n.Endpoints)}
}

// Apply changes the network as if someone had changed a run: "STEP.in_flight=32", "STEP.chunk=200", "STEP.rate=50",
// "STEP.budget=16" (of its endpoint), "STEP.instances=6" (of its service), "rate=50" (of each step), "priority=5",
// "without=RUN" (as if that other run were not there). An error says what is accepted.
func (n *Network) Apply(run int, change string) error {
	what, value, _ := strings.Cut(change, "=")
	if what == "without" {
		return n.without(run, value)
	}
	step, setting, of := cutLast(what)
	number, err := parse(what, setting, value)
	if err != nil {
		return fmt.Errorf("change %q: %w", change, err)
	}
	if what == "priority" {
		n.Runs[run].Priority = int(number)
		return nil
	}
	found := false
	for i := range n.Steps {
		s := &n.Steps[i]
		if s.Run != run || of && s.Name != step {
			continue
		}
		if found = true; !n.set(s, setting, number) || !of && setting != "rate" {
			return fmt.Errorf("change %q: no such setting; give STEP.in_flight, STEP.chunk, STEP.rate, STEP.budget, "+
				"STEP.instances, rate, priority or without", change)
		}
	}
	if !found {
		return fmt.Errorf("change %q: the run has no step %q; it has: %s", change, step, strings.Join(n.names(run), ", "))
	}
	return nil
}

// parse reads a number: a priority, a rate, or else a whole one from 1 on.
func parse(what, setting, value string) (float64, error) {
	least, whole := 1.0, true
	switch {
	case what == "priority":
		least = -1e9
	case setting == "rate":
		least, whole = 0, false
	}
	number, err := strconv.ParseFloat(value, 64)
	if err != nil || !(number >= least && number <= 1e9) || whole && number != math.Trunc(number) {
		return 0, fmt.Errorf("%q is no number that it could be; give for example in_flight=32 or rate=12.5", value)
	}
	return number, nil
}

// cutLast takes a setting from the name of its step, which may have dots.
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

func (n *Network) set(s *Step, setting string, number float64) bool {
	at := &n.Endpoints[s.Endpoint]
	switch setting {
	case "in_flight":
		s.InFlight, s.Auto = int(number), false
	case "chunk":
		s.Cost = s.Cost.sized(number)
	case "rate":
		s.Rate = number
	case "budget":
		at.Budget = int(number)
	case "instances":
		at.scale(s, number)
	default:
		return false
	}
	return true
}

// sized is what requests of so many items would cost: one part of their time goes with the items, the other does not.
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

// scale is as if so many instances of the service ran. More of them help only where requests wait for one.
func (e *Endpoint) scale(s *Step, instances float64) {
	by := instances / float64(max(s.Cost.Instances, 1))
	switch {
	case e.Workers > 0:
		e.Workers *= by
	case by < 1:
		e.Workers = max(s.Cost.Level, 1) * by
	}
}

// without takes another run away.
func (n *Network) without(run int, ref string) error {
	others := map[string]bool{}
	for r := range n.Runs {
		if r == run {
			continue
		}
		other := &n.Runs[r]
		others[cmp.Or(other.Name, other.ID)] = true
		if ref != other.Name && (len(ref) < 4 || !strings.HasPrefix(other.ID, ref)) {
			continue
		}
		for i := range n.Steps {
			if n.Steps[i].Run == r {
				n.Steps[i].Settled = n.Steps[i].Items
			}
		}
		return nil
	}
	if len(others) == 0 {
		return fmt.Errorf("change without=%s: no other run asks the same endpoints", ref)
	}
	return fmt.Errorf("change without=%s: no such run asks the same endpoints; these do: %s", ref,
		strings.Join(slices.Sorted(maps.Keys(others)), ", "))
}
