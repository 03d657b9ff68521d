package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// maxTold bounds the groups that a summary names.
const maxTold = 3

// Sum makes the summary from the groups. Whoever has added to them calls it again: groups that have become alike are
// put together.
func (e *Explanation) Sum() {
	e.Groups = merged(e.Groups)
	sortGroups(e.Groups)
	tellAmiss(e.Groups)
	e.Summary = e.summary()
}

func tellAmiss(groups []MissingGroup) {
	for i := range groups {
		groups[i].Stands = groups[i].Reason.Amiss()
	}
}

func (e *Explanation) summary() string {
	if e.Key != "" {
		return e.keySummary()
	}
	failed := ""
	if e.Failed > 0 {
		failed = fmt.Sprintf("; %s failed", control.Grouped(e.Failed))
	}
	switch {
	case e.Unsealed:
		return e.Summary // nothing is counted yet
	case e.Unsettled == 0 && e.Open != nil:
		return fmt.Sprintf("nothing is missing of %s so far%s; the run is open and takes more until it is sealed",
			manyItems(e.Items), failed)
	case e.Missing == 0 && e.Unsettled > 0:
		return fmt.Sprintf("every item of %s is done or has failed, and steps are still at %s that failed in others: %s",
			control.Grouped(e.Items), control.Grouped(e.Unsettled), e.told())
	case e.Missing == 0 && e.Failed == 0:
		return fmt.Sprintf("nothing is missing: %s done", allOf(e.Items))
	case e.Missing == 0:
		return fmt.Sprintf("nothing is missing: %s of %s are done and %s failed", control.Grouped(e.Done), manyItems(e.Items),
			control.Grouped(e.Failed))
	default:
		return fmt.Sprintf("%s of %s %s missing%s: %s", control.Grouped(e.Missing), manyItems(e.Items), isAre(e.Missing),
			failed,
			e.told())
	}
}

func (e *Explanation) keySummary() string {
	if e.Missing == 0 {
		switch {
		case e.Unsettled > 0 && e.Items == 1:
			return fmt.Sprintf("%q failed%s; other steps are still at it: %s", e.Key, failureOf(&e.Of[0]), e.told())
		case e.Failed == 0:
			return fmt.Sprintf("%q is done", e.Key)
		case e.Done == 0 && e.Items == 1:
			return fmt.Sprintf("%q failed%s", e.Key, failureOf(&e.Of[0]))
		}
		return fmt.Sprintf("%q stands %d times: %d done, %d failed", e.Key, e.Items, e.Done, e.Failed)
	}
	if e.Items == 1 {
		return fmt.Sprintf("%q is missing: %s", e.Key, e.told())
	}
	return fmt.Sprintf("%q stands %d times and %d of them are missing: %s", e.Key, e.Items, e.Missing, e.told())
}

// failureOf says which step failed an item, if there are several, and what it was left out of.
func failureOf(item *inspect.ItemView) string {
	var cause *inspect.ItemStep
	var out []string
	for i := range item.Steps {
		s := &item.Steps[i]
		switch {
		case s.State == "skipped":
			out = append(out, s.Name)
		case cause == nil && s.Error != nil && !s.Optional:
			cause = s
		}
	}
	if cause == nil || cause.Error == nil {
		return ""
	}
	text := ": " + cause.Error.Code + ": " + cause.Error.Message
	if len(item.Steps) > 1 {
		text = " in step " + cause.Name + text
	}
	if len(out) > 0 {
		text += "; it is left out of " + strings.Join(out, ", ")
	}
	return text
}

// told is what a summary says of groups that read alike.
type told struct {
	items int64
	text  string
	steps []string
	needs bool // somebody, whoever else is counted for these items
}

func (t *told) String() string {
	switch len(t.steps) {
	case 0:
		return t.text
	case 1:
		return t.text + " (step " + t.steps[0] + ")"
	default:
		return fmt.Sprintf("%s (%d steps)", t.text, len(t.steps))
	}
}

// told names the first groups, those of the same kind as one. An item that several steps miss is counted once.
func (e *Explanation) told() string {
	var all []*told
	for i := range e.Groups {
		g := &e.Groups[i]
		text := g.headline()
		j := slices.IndexFunc(all, func(t *told) bool { return t.text == text })
		if j < 0 {
			j, all = len(all), append(all, &told{text: text})
		}
		t := all[j]
		t.needs = t.needs || g.needsSomebody()
		if len(e.Steps) == 0 {
			t.items += g.Items
			continue
		}
		t.items += g.Counted
		if g.Step != "" && !slices.Contains(t.steps, g.Step) {
			t.steps = append(t.steps, g.Step)
		}
	}
	all = slices.DeleteFunc(all, func(t *told) bool { return t.items == 0 && !t.needs })
	if len(all) == 1 {
		return all[0].String()
	}
	var parts []string
	var rest int64
	for i, t := range all {
		switch {
		case i >= maxTold:
			rest += t.items
		case t.items == 0:
			parts = append(parts, t.String())
		default:
			parts = append(parts, control.Grouped(t.items)+" "+t.String())
		}
	}
	if rest > 0 {
		parts = append(parts, control.Grouped(rest)+" for other reasons")
	}
	return strings.Join(parts, "; ")
}

// headline is the reason in a few words.
func (g *MissingGroup) headline() string {
	if kind, _ := workqueue.TargetKind(g.Endpoint); kind != workqueue.KindEndpoint && g.Reason == ReasonPostponed {
		return "not to be worked on at the moment"
	}
	if text, ok := headlines(targetText(g.Endpoint), g.Endpoint)[g.Reason]; ok {
		return text
	}
	return "in no plane and in no slice: run `tranche doctor`"
}

func headlines(to, name string) map[Reason]string {
	return map[Reason]string{
		ReasonOperator:    "paused: waiting for somebody to resume the run",
		ReasonThreshold:   "paused because too many items failed: waiting for an operator",
		ReasonGuard:       "paused because the first outcomes plainly failed: waiting for an operator",
		ReasonCanary:      "waiting for somebody to approve the canary",
		ReasonSampling:    "held back until the canary's sample is over",
		ReasonNoNode:      "waiting for a node: none is alive",
		ReasonShort:       "waiting for what a node lacks to claim them",
		ReasonReadOnly:    "waiting for PostgreSQL to take writes",
		ReasonNATSRefused: "waiting for a user that NATS takes",
		ReasonNATSAway:    "waiting for NATS, which the node cannot reach",
		ReasonSettingUp:   "waiting for the streams to be set up",
		ReasonBreaker:     "waiting for " + to + ", whose breaker is open",
		ReasonProbing:     "waiting for " + to + ", whose breaker is open",
		ReasonStepLimit:   "ready, while as many requests are out as the run allows",
		ReasonBudget:      "ready, while the budget of " + to + " is used up",
		ReasonAdaptive:    "ready, while " + to + " has as many requests as it takes well",
		ReasonPriority:    "behind runs of higher priority at " + to,
		ReasonShare:       "ready, while the run has its share of " + to,
		ReasonRate:        "waiting for the rate limit",
		ReasonNext:        "about to be claimed",
		ReasonBackoff:     "waiting for their next try",
		ReasonThrottled:   "waiting for " + to + ", which said it has too much to do",
		ReasonBreather:    "waiting for " + to + ", which was down",
		ReasonPostponed:   "not to be published at the moment",
		ReasonPublishing:  "being published",
		ReasonClaimLost:   "claimed by a node that is gone",
		ReasonStreamLost:  "lost with a stream, about to be issued again",
		ReasonOverdue:     "past their deadline",
		ReasonQueued:      "queued for " + to,
		ReasonNoListener:  "waiting for a service: nobody listens on " + to,
		ReasonNotTaking:   "waiting for the services of " + to + ", which can take nothing",
		ReasonBusy:        "queued behind other requests at " + to,
		ReasonSuspended:   "waiting: the consumer of " + to + " was paused by hand",
		ReasonNoConsumer:  "waiting for the consumer of " + to + " to be made",
		ReasonWorking:     "with the services of " + to,
		ReasonGone:        "with a service of " + to + " that is gone",
		ReasonNested:      "with the flow " + name + ", which asks an endpoint on which nobody listens",
		ReasonPartly:      "in requests that " + to + " has answered in part",
		ReasonQuarantine:  "with " + to + ", a reply of which could not be taken",
		ReasonNeeds:       "waiting for other steps",
		ReasonBarrier:     "waiting at a barrier, until other steps have ended for all items",
		ReasonGate:        "waiting for somebody to approve the step",
		ReasonNoLocal:     "waiting for a node that has " + to,
		ReasonFetching:    "being fetched: nodes are asking " + to,
		ReasonLane:        "waiting in their lane for items before them",
		ReasonUnplaced:    "waiting for more items, or for the run to be sealed",
		ReasonCancelled:   "left without an outcome when the run was cancelled",
	}
}

func isAre(n int64) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

func allOf(n int64) string {
	if n == 1 {
		return "the only item is"
	}
	return "all " + manyItems(n) + " are"
}
