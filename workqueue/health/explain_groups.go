package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// mergeKey is what groups must share to be shown as one.
type mergeKey struct {
	step, endpoint, state, who string
	reason                     Kind
	needs                      stepSet
	owner                      Owner
}

type cameBy struct {
	what  string
	items int64
}

// merged merges groups that differ only in how their items got where they are, and keeps all the ways.
func merged(all []MissingGroup) []MissingGroup {
	slices.SortStableFunc(all, func(a, b MissingGroup) int { return cmp.Compare(b.Items, a.Items) })
	var groups []MissingGroup
	at := map[mergeKey]int{}
	for i := range all {
		g := all[i]
		key := mergeKey{g.Step, g.Endpoint, g.State, g.Who, g.Reason, g.needs, g.Owner}
		if j, ok := at[key]; ok {
			groups[j].join(&g)
			continue
		}
		at[key] = len(groups)
		groups = append(groups, g)
	}
	for i := range groups {
		groups[i].tell()
	}
	return groups
}

func (g *MissingGroup) join(h *MissingGroup) {
	g.Items, g.Counted = g.Items+h.Items, g.Counted+h.Counted
	g.Slices, g.Answered = g.Slices+h.Slices, g.Answered+h.Answered
	g.Since, g.When = earlier(g.Since, h.Since), earlier(g.When, h.When)
	if g.Last == nil || h.Last != nil && h.Last.At.After(g.Last.At) {
		g.Last = h.Last
	}
	if h.until.After(g.until) {
		g.until = h.until
	}
	for _, by := range h.by {
		i := slices.IndexFunc(g.by, func(b cameBy) bool { return b.what == by.what })
		if i < 0 {
			g.by = append(g.by, by)
		} else {
			g.by[i].items += by.items
		}
	}
}

const maxWays = 3

// tell puts the ways in which the items got here before Why, and the latest When after Next. Call it once.
func (g *MissingGroup) tell() {
	var ways []string
	var rest int64
	for i, by := range g.by {
		switch {
		case len(g.by) == 1:
			ways = append(ways, by.what)
		case i < maxWays:
			ways = append(ways, fmt.Sprintf("%s (%s)", by.what, manyItems(by.items)))
		default:
			rest += by.items
		}
	}
	if rest > 0 {
		ways = append(ways, fmt.Sprintf("or something else (%s)", manyItems(rest)))
	}
	if g.Why != "" {
		ways = append(ways, g.Why)
	}
	g.Why, g.by = strings.Join(ways, "; "), nil
	if g.When != nil && g.until.Sub(*g.When) > time.Second {
		g.Next += ", one at a time until " + clock(g.until)
	}
	g.until = time.Time{}
}

// alikeKey is what groups of several steps must share to be shown as one.
type alikeKey struct {
	state, who, why, next, advice string
	reason                        Kind
	owner                         Owner
}

// MergeSteps merges the groups of several steps that say the same. Call it last: endpoints may be lost.
func (e *Explanation) MergeSteps() {
	groups, at := []MissingGroup{}, map[alikeKey]int{}
	for i := range e.Groups {
		g := e.Groups[i]
		advice := g.ofAnyStep()
		key := alikeKey{g.State, g.Who, g.Why, g.Next, fmt.Sprint(advice), g.Reason, g.Owner}
		switch g.Reason {
		case ReasonNeeds: // each says which step needs which
			key.who, key.why = "", ""
		case ReasonRate: // each says how long its items take; the first has most
			key.next = ""
		}
		if j, ok := at[key]; ok && !groups[j].of(g.Step) {
			groups[j].joinStep(&g)
			groups[j].Advice = advice
			continue
		}
		at[key] = len(groups)
		groups = append(groups, g)
	}
	e.Groups = groups
}

// ofAnyStep is the group's advice with NAME in place of its step.
func (g *MissingGroup) ofAnyStep() []Advice {
	all := slices.Clone(g.Advice)
	for i := range all {
		if rest, ok := strings.CutSuffix(all[i].Command, " --step "+shellQuote(g.Step)); ok {
			all[i].Command = rest + " --step NAME"
		}
	}
	return all
}

// of reports whether the group has items of the step; an empty step means any.
func (g *MissingGroup) of(step string) bool {
	return step == "" || g.Step == step || slices.ContainsFunc(g.Steps, func(p StepPart) bool { return p.Step == step })
}

func (g *MissingGroup) joinStep(h *MissingGroup) {
	if len(g.Steps) == 0 {
		g.Steps = []StepPart{{g.Step, g.Items}}
	}
	g.Steps = append(g.Steps, StepPart{h.Step, h.Items})
	most := max(g.Items, h.Items)
	g.join(h)
	g.Items, g.Step = max(most, g.Counted), ""
	if g.Endpoint != h.Endpoint {
		g.Endpoint = ""
	}
	if g.Reason == ReasonNeeds {
		g.needed = slices.Concat(g.needed, h.needed)
		slices.Sort(g.needed)
		g.needed = slices.Compact(g.needed)
		g.Who = stepsText(g.needed)
	}
	if g.Why != h.Why {
		g.Why += "; " + h.Why
	}
}

func earlier(a, b *time.Time) *time.Time {
	if a == nil || b != nil && b.Before(*a) {
		return b
	}
	return a
}

// sortGroups orders groups by urgency, then by items: those that need an operator; those that keep the run from
// ending; those behind requests in flight; those that a node handles immediately; those that wait for other steps.
func sortGroups(all []MissingGroup) {
	slices.SortStableFunc(all, func(a, b MissingGroup) int {
		return cmp.Or(cmp.Compare(a.urgency(), b.urgency()), cmp.Compare(b.Items, a.Items),
			cmp.Compare(a.State, b.State), cmp.Compare(a.Reason, b.Reason))
	})
}

func (g *MissingGroup) urgency() int {
	switch {
	case g.needsSomebody():
		return 0
	case g.Owner == OwnerNobody:
		return 1
	case g.Owner == OwnerStep:
		return 5
	case g.Owner == OwnerNode:
		return 4
	case g.Behind():
		return 3
	default:
		return 2
	}
}

// needsSomebody reports whether the items wait until an operator acts.
func (g *MissingGroup) needsSomebody() bool { return g.Owner == OwnerOperator || g.Owner == OwnerNATS }

// Behind reports whether the items wait for requests in flight to end.
func (g *MissingGroup) Behind() bool { return g.Reason.Rule().Behind }
