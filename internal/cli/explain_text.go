package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
)

const explainColumns = 96

// ExplanationText formats an explanation, most important sentence first.
func ExplanationText(e *client.Explanation, room int) string {
	t := Prose{Columns: ExplainWidth(room), Now: e.At}
	t.Paragraph("", capital(EscapeControl(e.Summary))+".")
	for i := range e.Groups { // what to do comes first, and once
		if g := &e.Groups[i]; g.Owner == client.OwnerOperator || g.Owner == client.OwnerNATS {
			t.advice(g.Advice)
		}
	}
	t.advice(e.Advice)
	t.Paragraph("", Text("run %v (%v): %v%v, %v of %v items done, %v failed; as of %v", e.Run, cmp.Or(e.Name, e.Plan),
		e.State, If(e.Generation > 1, ", generation %v", e.Generation), e.Done, e.Items, e.Failed, e.At))
	t.Field("last", t.happening(e.Last))
	for i := range e.Groups {
		t.group(&e.Groups[i], len(e.Steps) > 0)
	}
	for i := range e.Steps {
		var causes []string
		for _, l := range e.Steps[i].LeftOut {
			causes = append(causes, Text("%v because step %v failed", l.Items, l.Because))
		}
		t.Field("left out", If(len(causes) > 0, "step %v leaves out %v", e.Steps[i].Name, strings.Join(causes, ", ")))
	}
	for _, note := range e.Notes {
		t.Field("note", EscapeControl(note))
	}
	for i := range e.Of {
		t.B.WriteString("\n" + ItemText(&e.Of[i], room))
	}
	return t.B.String()
}

// ExplainWidth returns the width of prose on a line of that width; 0: unlimited.
func ExplainWidth(room int) int {
	if room <= 0 {
		return explainColumns
	}
	return max(min(room, explainColumns), 40)
}

// Prose is wrapped text.
type Prose struct {
	B       strings.Builder
	Columns int
	Now     time.Time // by the database's clock

	advised []client.Advice // advice already written
}

const fieldIndent = 12

func (t *Prose) group(g *client.MissingGroup, several bool) {
	t.B.WriteString("\n")
	t.Paragraph("", Text("%v%v %v%v%v: %v", If(several && g.Step != "", "step %v: ", g.Step), Plural(g.Items, "item"),
		g.State, If(g.Slices > 0, " in %v", Plural(g.Slices, "request")), If(g.Runs > 1, " of %v runs", g.Runs),
		strings.ReplaceAll(g.Reason, "_", " ")))
	var parts []string
	for _, p := range g.Steps {
		parts = append(parts, Text("%v %v", p.Step, p.Items))
	}
	t.Field("steps", strings.Join(parts, ", "))
	t.Field("waits on", Text("%v: %v", g.Owner, g.Who))
	t.Field("why", EscapeControl(g.Why))
	if g.Since != nil {
		t.Field("since", t.Ago(*g.Since))
	}
	t.Field("last", t.happening(g.Last))
	next := EscapeControl(g.Next)
	if g.When != nil {
		next += ": " + t.until(*g.When)
	}
	t.Field("next", next)
	t.advice(g.Advice)
}

func (t *Prose) advice(all []client.Advice) {
	first := true
	for _, a := range all {
		if slices.Contains(t.advised, a) {
			continue
		}
		t.advised = append(t.advised, a)
		head, do := "you could", EscapeControl(a.Do)
		if rest, ok := strings.CutPrefix(do, "or"); ok && strings.ContainsAny(rest[:min(1, len(rest))], " ,") {
			head, do = "or", strings.TrimLeft(rest, " ,")
		} else if !first {
			head = "or"
		}
		first = false
		if a.Command == "" {
			t.Field(head, do)
			continue
		}
		t.Field(head, do+":")
		// Commands are not wrapped, so that they can be copied.
		t.B.WriteString(strings.Repeat(" ", fieldIndent) + EscapeControl(a.Command) + "\n")
	}
}

func (t *Prose) happening(h *client.LastEvent) string {
	if h == nil {
		return ""
	}
	return t.Ago(h.At) + ": " + EscapeControl(h.What)
}

// Ago formats a past time.
func (t *Prose) Ago(at time.Time) string {
	d := t.Now.Sub(at)
	if d < time.Second {
		return "just now"
	}
	return Span(d) + " ago (" + Moment(at) + ")"
}

func (t *Prose) until(at time.Time) string {
	d := at.Sub(t.Now)
	if d < time.Second {
		return "within a second"
	}
	return "in " + Span(d) + " (" + Moment(at) + ")"
}

// Field writes a named line, unless the text is empty.
func (t *Prose) Field(name, text string) {
	if text != "" {
		t.Paragraph("  "+name+strings.Repeat(" ", max(fieldIndent-2-len(name), 1)), text)
	}
}

// Paragraph writes a wrapped text after a head; further lines are indented by the head's length. Commands in
// backquotes are not broken, so that they can be copied.
func (t *Prose) Paragraph(head, text string) {
	indent := len([]rune(head))
	line, used := head, indent
	for _, word := range words(text) {
		length := len([]rune(word))
		if used > indent && used+1+length > t.Columns {
			t.B.WriteString(strings.TrimRight(line, " ") + "\n")
			line, used = strings.Repeat(" ", indent), indent
		}
		if used > indent {
			line, used = line+" ", used+1
		}
		line, used = line+word, used+length
	}
	t.B.WriteString(strings.TrimRight(line, " ") + "\n")
}

// words splits a text; text in backquotes is one word.
func words(text string) (all []string) {
	open, paired := false, strings.Count(text, "`")%2 == 0
	for word := range strings.FieldsSeq(text) {
		if open {
			all[len(all)-1] += " " + word
		} else {
			all = append(all, word)
		}
		open = paired && open != (strings.Count(word, "`")%2 == 1)
	}
	return all
}

func capital(s string) string {
	if s == "" || s[0] < 'a' || s[0] > 'z' {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// EndpointExplanationText formats the explanation of an endpoint.
func EndpointExplanationText(e *client.EndpointExplanation, room int) string {
	t := Prose{Columns: ExplainWidth(room), Now: e.At}
	t.Paragraph("", capital(EscapeControl(e.Summary))+".")
	t.Field("listens", EscapeControl(e.Listens))
	t.Field("as of", Moment(e.At))
	for i := range e.Groups {
		t.group(&e.Groups[i], false)
	}
	for _, note := range e.Notes {
		t.Field("note", EscapeControl(note))
	}
	return t.B.String()
}

// ItemText formats an item with its state, result or error, and all attempts.
func ItemText(item *client.ItemView, room int) string {
	t := Table{}
	t.Row("key", item.Key)
	t.Row("ordinal", fmt.Sprint(item.Ordinal))
	t.Row("state", item.State)
	t.Field("lane", item.Lane)
	t.Row("payload", Shown(EscapeControl(string(item.Payload)), room))
	for _, e := range item.EarlierPayloads {
		t.Row(fmt.Sprintf("until generation %d", e.Generation), Shown(EscapeControl(string(e.Payload)), room),
			Text("corrected by %v at %v%v", e.Actor, e.At, If(e.Reason != "", ": %v", e.Reason)))
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
		t.Row("error", EscapeControl(step.Error.Code)+": "+Shown(EscapeControl(step.Error.Message), room))
	case step.Large:
		t.Say("result", "%v of %v, in pieces", bytesText(step.Size), cmp.Or(step.ContentType, "application/json"))
	case len(step.ResultBytes) > 0:
		t.Say("result", "%v bytes of %v", len(step.ResultBytes), step.ContentType)
	case len(step.Result) > 0:
		t.Row("result", Shown(EscapeControl(string(step.Result)), room))
	}
	if a := step.Accepted; a != nil {
		t.Say("accepted", "%v by %v: %v", a.At, a.By, a.Reason)
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
	}
	return t.String() + "no attempts yet\n"
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

func attemptErrors(attempts []client.Attempt) (text string) {
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
		text += Text("  %v: %v: %v\n", tries, first.Error.Code, first.Error.Message)
	}
	return text
}

func sameError(a, b *client.Attempt) bool {
	return b.Error != nil && *a.Error == *b.Error && a.Generation == b.Generation && b.Outcome != "failed"
}

func itemState(step *client.ItemStep) string {
	state := strings.ReplaceAll(step.State, "_", " ")
	switch {
	case step.State == "skipped":
		return "left out" + If(len(step.LeftOutBy) > 0, ": %v failed", stepNames(step.LeftOutBy))
	case step.WaitsForApproval:
		state += ", until the step is approved"
	case step.State == "waiting" && len(step.WaitsFor) > 0:
		state += " for " + stepNames(step.WaitsFor)
	case len(step.WaitsFor) > 0:
		state += ", at the barrier: " + stepNames(step.WaitsFor) + " has to end for all items"
	case step.Stale:
		state += "; its inputs are being recomputed"
	}
	return state
}

func stepNames(names []string) string {
	return Text("step%v %v", If(len(names) > 1, "s"), strings.Join(names, ", "))
}

// OptionalText marks an optional step.
func OptionalText(optional bool) string { return If(optional, " (optional)") }

func partOrigin(step *client.ItemStep) string {
	if step.Generation == 0 {
		return ""
	}
	return Join(", ", fmt.Sprintf("generation %d", step.Generation),
		If(step.SHA256 != "", "%v, sha256 %v", bytesText(step.Size), shortHash(step.SHA256)),
		If(step.RecordedAt != nil, "%v", step.RecordedAt), If(step.Service != "", "by %v", step.Service))
}

func earlierText(p *client.EarlierPart) string {
	what := bytesText(p.Size) + ", sha256 " + shortHash(p.SHA256)
	if p.Error != nil {
		what = "failed with " + p.Error.Code
	}
	return Text("generation %v, %v%v", p.Generation, what, If(p.RecordedAt != nil, ", %v", p.RecordedAt))
}

func bytesText(n int) string { return Plural(int64(n), "byte") }

func shortHash(hash string) string { return hash[:min(len(hash), 16)] }

// TargetText describes a step's target.
func TargetText(key string) string { return EscapeControl(workqueue.TargetText(key)) }
