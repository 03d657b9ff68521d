package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
)

// maxShown bounds the characters of a payload or result on a terminal. --json has all of it.
const maxShown = 2000

func itemText(item *client.ItemView) string {
	t := table{}
	t.row("key", inert(item.Key))
	t.row("ordinal", fmt.Sprint(item.Ordinal))
	t.row("state", string(item.State))
	t.row("payload", short(inert(string(item.Payload)), maxShown))
	var text strings.Builder
	text.WriteString(t.String())
	for i := range item.Steps {
		text.WriteString("\n" + stepText(&item.Steps[i]))
	}
	return text.String()
}

func stepText(step *client.ItemStep) string {
	t := table{}
	t.row("step", inert(step.Name)+" on "+targetText(step.Endpoint)+optionalText(step.Optional))
	t.row("state", itemState(step))
	switch {
	case step.Error != nil:
		t.row("error", inert(step.Error.Code)+": "+short(inert(step.Error.Message), maxShown))
	case len(step.ResultBytes) > 0:
		t.row("result", fmt.Sprintf("%s bytes of %s", count(int64(len(step.ResultBytes))), inert(step.ContentType)))
	case len(step.Result) > 0:
		t.row("result", short(inert(string(step.Result)), maxShown))
	}
	if a := step.Accepted; a != nil {
		t.row("accepted", moment(a.At)+" by "+inert(a.By)+": "+inert(a.Reason))
	}
	if origin := partOrigin(step); origin != "" {
		t.row("part", origin)
	}
	for i := range step.Earlier {
		t.row("before", earlierText(&step.Earlier[i]))
	}
	switch {
	case len(step.Attempts) > 0:
	case step.State == "skipped":
		return t.String()
	default:
		return t.String() + "no attempts yet\n"
	}
	a := table{right: map[int]bool{0: true, 4: true}}
	a.row("TRY", "SLICE", "WHY", "OUTCOME", "ITEMS", "SENT", "TOOK", "SERVICE")
	for i := range step.Attempts {
		at := &step.Attempts[i]
		sent, took := "-", "-"
		if at.SentAt != nil {
			sent = at.SentAt.Local().Format("01-02 15:04:05")
			if at.EndedAt != nil {
				took = span(at.EndedAt.Sub(*at.SentAt).Round(time.Millisecond))
			}
		}
		slice := at.Slice[:min(len(at.Slice), 8)]
		a.row(fmt.Sprint(at.Attempt), slice, inert(at.Cause), at.Outcome, count(int64(at.Items)), sent, took,
			short(inert(at.Service), 24))
	}
	return t.String() + "\n" + a.String() + attemptErrors(step.Attempts)
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
		fmt.Fprintf(&b, "  %s: %s: %s\n", tries, inert(first.Error.Code), short(inert(first.Error.Message), 200))
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
	case step.State == "skipped":
		state = "left out"
		if len(step.LeftOutBy) > 0 {
			state += ": " + stepNames(step.LeftOutBy) + " failed"
		}
	case step.State == "waiting" && len(step.WaitsFor) > 0:
		state += " for " + stepNames(step.WaitsFor)
	case len(step.WaitsFor) > 0:
		state += ", at the barrier: " + stepNames(step.WaitsFor) + " has to end for all items"
	case step.Stale:
		state += "; what it was made from is being made again"
	}
	return state
}

// stepNames names steps.
func stepNames(names []string) string {
	if len(names) == 1 {
		return "step " + inert(names[0])
	}
	return "steps " + inert(strings.Join(names, ", "))
}

func optionalText(optional bool) string {
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
		parts = append(parts, moment(*step.RecordedAt))
	}
	if step.Service != "" {
		parts = append(parts, "by "+short(inert(step.Service), 40))
	}
	return strings.Join(parts, ", ")
}

// earlierText is a part that does not count any more.
func earlierText(p *client.EarlierPart) string {
	text := fmt.Sprintf("generation %d, ", p.Generation)
	if p.Error != nil {
		text += "failed with " + inert(p.Error.Code)
	} else {
		text += bytesText(p.Size) + ", sha256 " + shortHash(p.SHA256)
	}
	if p.RecordedAt != nil {
		text += ", " + moment(*p.RecordedAt)
	}
	return text
}

func bytesText(n int) string {
	if n == 1 {
		return "1 byte"
	}
	return count(int64(n)) + " bytes"
}

// shortHash is as much of a hash as people compare.
func shortHash(hash string) string { return hash[:min(len(hash), 16)] }

// targetText is what a step asks, in words.
func targetText(key string) string {
	switch kind, target := workqueue.TargetKind(key); kind {
	case workqueue.KindHTTP:
		return "HTTP service " + inert(target)
	case workqueue.KindSQL:
		return "source " + inert(target)
	case workqueue.KindLocal:
		return "local function " + inert(target)
	default:
		return "endpoint " + inert(target)
	}
}
