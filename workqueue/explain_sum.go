package workqueue

import (
	"fmt"
	"strings"
)

// maxTold bounds the groups that a summary names.
const maxTold = 3

// Sum makes the summary from the groups, which whoever has added to them calls again.
func (e *Explanation) Sum() {
	sortGroups(e.Groups)
	e.Summary = e.summary()
}

func (e *Explanation) summary() string {
	if e.Key != "" {
		return e.keySummary()
	}
	failed := ""
	if e.Failed > 0 {
		failed = fmt.Sprintf("; %s failed", grouped(e.Failed))
	}
	switch {
	case e.Unsealed:
		return e.Summary // nothing is counted yet
	case e.Missing == 0 && e.Failed == 0:
		return fmt.Sprintf("nothing is missing: %s done", allOf(e.Items))
	case e.Missing == 0:
		return fmt.Sprintf("nothing is missing: %s of %s are done and %s failed", grouped(e.Done), manyItems(e.Items),
			grouped(e.Failed))
	default:
		return fmt.Sprintf("%s of %s %s missing%s: %s", grouped(e.Missing), manyItems(e.Items), isAre(e.Missing), failed,
			e.told())
	}
}

func (e *Explanation) keySummary() string {
	if e.Missing == 0 {
		switch {
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

func failureOf(item *ItemView) string {
	for i := range item.Steps {
		if err := item.Steps[i].Error; err != nil {
			return ": " + err.Code + ": " + err.Message
		}
	}
	return ""
}

// told names the first groups, those of the same kind as one.
func (e *Explanation) told() string {
	type told struct {
		items int64
		text  string
	}
	var all []told
	for i := range e.Groups {
		g := &e.Groups[i]
		text := g.headline()
		found := false
		for j := range all {
			if all[j].text == text {
				all[j].items, found = all[j].items+g.Items, true
			}
		}
		if !found {
			all = append(all, told{g.Items, text})
		}
	}
	if len(all) == 1 {
		return all[0].text
	}
	var parts []string
	var rest int64
	for i, t := range all {
		if i < maxTold {
			parts = append(parts, grouped(t.items)+" "+t.text)
		} else {
			rest += t.items
		}
	}
	if rest > 0 {
		parts = append(parts, grouped(rest)+" for other reasons")
	}
	return strings.Join(parts, "; ")
}

// headline is the reason in a few words.
func (g *MissingGroup) headline() string {
	at := " " + g.Endpoint
	switch g.Reason {
	case ReasonLoading:
		return "still loading"
	case ReasonClearing:
		return "a load that failed is being taken back"
	case ReasonOperator:
		return "paused: waiting for somebody to resume the run"
	case ReasonThreshold:
		return "paused because too many items failed: waiting for an operator"
	case ReasonCanary:
		return "waiting for somebody to approve the canary"
	case ReasonSampling:
		return "held back until the canary's sample is over"
	case ReasonNoNode:
		return "waiting for a node: none is alive"
	case ReasonNATSAway:
		return "waiting for NATS, which the node cannot reach"
	case ReasonSettingUp:
		return "waiting for the streams to be set up"
	case ReasonBreaker, ReasonProbing:
		return "waiting for endpoint" + at + ", whose breaker is open"
	case ReasonStepLimit:
		return "ready, while as many requests are out as the run allows"
	case ReasonBudget:
		return "ready, while the budget of endpoint" + at + " is used up"
	case ReasonAdaptive:
		return "ready, while endpoint" + at + " has as many requests as it takes well"
	case ReasonPriority:
		return "behind runs of higher priority at endpoint" + at
	case ReasonShare:
		return "ready, while the run has its share of endpoint" + at
	case ReasonRate:
		return "waiting for the rate limit"
	case ReasonNext:
		return "about to be claimed"
	case ReasonBackoff:
		return "waiting for their next try"
	case ReasonBreather:
		return "waiting for endpoint" + at + ", which was down"
	case ReasonPostponed:
		return "not to be published at the moment"
	case ReasonPublishing:
		return "being published"
	case ReasonClaimLost:
		return "claimed by a node that is gone"
	case ReasonStreamLost:
		return "lost with a stream, about to be issued again"
	case ReasonOverdue:
		return "past their deadline"
	case ReasonQueued:
		return "queued for endpoint" + at
	case ReasonNoListener:
		return "waiting for a service: nobody listens on endpoint" + at
	case ReasonNotTaking:
		return "waiting for the services of endpoint" + at + ", which can take nothing"
	case ReasonBusy:
		return "queued behind other requests at endpoint" + at
	case ReasonSuspended:
		return "waiting: the consumer of endpoint" + at + " was paused by hand"
	case ReasonNoConsumer:
		return "waiting for the consumer of endpoint" + at + " to be made"
	case ReasonWorking:
		return "with the services of endpoint" + at
	case ReasonGone:
		return "with a service of endpoint" + at + " that is gone"
	case ReasonNested:
		return "with the flow" + at + ", which asks an endpoint on which nobody listens"
	case ReasonPartly:
		return "in requests that endpoint" + at + " has answered in part"
	case ReasonQuarantine:
		return "with endpoint" + at + ", a reply of which could not be taken"
	case ReasonNeeds:
		return "waiting for another step"
	case ReasonCancelled:
		return "left without an outcome when the run was cancelled"
	default:
		return "in no plane and in no slice: run tranche doctor"
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
