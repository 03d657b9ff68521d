package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
)

// ItemText tells of an item: its state, its result or error, and every attempt.
func ItemText(item *client.ItemView, room int) string {
	t := Table{}
	t.Row("key", item.Key)
	t.Row("ordinal", fmt.Sprint(item.Ordinal))
	t.Row("state", item.State)
	t.Field("lane", item.Lane)
	t.Row("payload", Shown(Inert(string(item.Payload)), room))
	for i := range item.EarlierPayloads {
		e := &item.EarlierPayloads[i]
		by := "corrected by " + e.Actor + " at " + Moment(e.At)
		if e.Reason != "" {
			by += ": " + e.Reason
		}
		t.Row(fmt.Sprintf("until generation %d", e.Generation), Shown(Inert(string(e.Payload)), room), by)
	}
	texts := []string{t.String()}
	for i := range item.Steps {
		texts = append(texts, stepText(&item.Steps[i], room))
	}
	return strings.Join(texts, "\n")
}

func stepText(step *client.ItemStep, room int) string {
	t := Table{}
	t.Row("step", step.Name+" on "+TargetText(step.Endpoint)+OptionalText(step.Optional))
	t.Row("state", itemState(step))
	switch {
	case step.Error != nil:
		t.Row("error", Inert(step.Error.Code)+": "+Shown(Inert(step.Error.Message), room))
	case step.Large:
		t.Row("result", fmt.Sprintf("%s of %s, in pieces", bytesText(step.Size), step.ContentType))
	case len(step.ResultBytes) > 0:
		t.Row("result", fmt.Sprintf("%s bytes of %s", Count(int64(len(step.ResultBytes))), step.ContentType))
	case len(step.Result) > 0:
		t.Row("result", Shown(Inert(string(step.Result)), room))
	}
	if a := step.Accepted; a != nil {
		t.Row("accepted", Moment(a.At)+" by "+a.By+": "+a.Reason)
	}
	t.Field("part", partOrigin(step))
	for i := range step.Earlier {
		t.Row("before", earlierText(&step.Earlier[i]))
	}
	switch {
	case len(step.Attempts) > 0:
		return t.String() + "\n" + attemptsText(step.Attempts, room)
	case step.State == "skipped":
		return t.String()
	default:
		return t.String() + "no attempts yet\n"
	}
}

func attemptsText(attempts []client.Attempt, room int) string {
	list := List[client.Attempt]{
		Columns: "TRY>|SLICE|WHY|OUTCOME|ITEMS>|SENT|TOOK|SERVICE",
		Row: func(a *client.Attempt) []any {
			took := "-"
			if a.SentAt != nil && a.EndedAt != nil {
				took = Span(a.EndedAt.Sub(*a.SentAt).Round(time.Millisecond))
			}
			return []any{a.Attempt, a.Slice[:min(len(a.Slice), 8)], a.Cause, a.Outcome, a.Items, a.SentAt, took, a.Service}
		},
	}
	return list.Text(attempts, room) + attemptErrors(attempts)
}

// attemptErrors says why attempts failed that were not the last, those in a row with the same error in one line.
func attemptErrors(attempts []client.Attempt) string {
	var b strings.Builder
	for i := 0; i < len(attempts); {
		first := &attempts[i]
		last := first
		for i++; i < len(attempts) && first.Error != nil && sameError(first, &attempts[i]); i++ {
			last = &attempts[i]
		}
		if first.Error == nil || first.Outcome == "failed" {
			continue
		}
		tries := fmt.Sprintf("try %d", first.Attempt)
		if last != first {
			tries = fmt.Sprintf("tries %d to %d", first.Attempt, last.Attempt)
		}
		fmt.Fprintf(&b, "  %s: %s: %s\n", tries, Inert(first.Error.Code), Inert(first.Error.Message))
	}
	return b.String()
}

func sameError(a, b *client.Attempt) bool {
	return b.Error != nil && *a.Error == *b.Error && a.Generation == b.Generation && b.Outcome != "failed"
}

// itemState says where an item is in a step, and what keeps it there.
func itemState(step *client.ItemStep) string {
	state := strings.ReplaceAll(step.State, "_", " ")
	switch {
	case step.State == "skipped" && len(step.LeftOutBy) > 0:
		return "left out: " + stepNames(step.LeftOutBy) + " failed"
	case step.State == "skipped":
		return "left out"
	case step.WaitsForApproval:
		state += ", until somebody approves the step"
	case step.State == "waiting" && len(step.WaitsFor) > 0:
		state += " for " + stepNames(step.WaitsFor)
	case len(step.WaitsFor) > 0:
		state += ", at the barrier: " + stepNames(step.WaitsFor) + " has to end for all items"
	case step.Stale:
		state += "; what it was made from is being made again"
	}
	return state
}

func stepNames(names []string) string {
	if len(names) == 1 {
		return "step " + Inert(names[0])
	}
	return "steps " + Inert(strings.Join(names, ", "))
}

// OptionalText says that a step may fail without harm.
func OptionalText(optional bool) string {
	if optional {
		return " (optional)"
	}
	return ""
}

// partOrigin says what a part is and where it came from.
func partOrigin(step *client.ItemStep) string {
	if step.Generation == 0 {
		return ""
	}
	parts := []string{fmt.Sprintf("generation %d", step.Generation)}
	if step.SHA256 != "" {
		parts = append(parts, bytesText(step.Size), "sha256 "+shortHash(step.SHA256))
	}
	if step.RecordedAt != nil {
		parts = append(parts, Moment(*step.RecordedAt))
	}
	if step.Service != "" {
		parts = append(parts, "by "+Inert(step.Service))
	}
	return strings.Join(parts, ", ")
}

// earlierText is a part that does not count any more.
func earlierText(p *client.EarlierPart) string {
	text := fmt.Sprintf("generation %d, ", p.Generation)
	if p.Error != nil {
		text += "failed with " + Inert(p.Error.Code)
	} else {
		text += bytesText(p.Size) + ", sha256 " + shortHash(p.SHA256)
	}
	if p.RecordedAt != nil {
		text += ", " + Moment(*p.RecordedAt)
	}
	return text
}

func bytesText(n int) string { return Plural(int64(n), "byte") }

// shortHash is as much of a hash as people compare.
func shortHash(hash string) string { return hash[:min(len(hash), 16)] }

// TargetText is what a step asks, in words.
func TargetText(key string) string {
	switch kind, target := workqueue.TargetKind(key); kind {
	case workqueue.KindHTTP:
		return "HTTP service " + Inert(target)
	case workqueue.KindSQL:
		return "source " + Inert(target)
	case workqueue.KindLocal:
		return "local function " + Inert(target)
	default:
		return "endpoint " + Inert(target)
	}
}
