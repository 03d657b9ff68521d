package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/tranchehq/tranche/orchestrator/client"
)

// explainColumns is how wide explanations are where there is room for it.
const explainColumns = 96

// explanationText is an explanation with the most important sentence first.
func explanationText(e *client.Explanation, room int) string {
	t := prose{columns: explainWidth(room), now: e.At}
	t.paragraph("", capital(inert(e.Summary))+".")
	name := e.Name
	if name == "" {
		name = e.Plan
	}
	state := e.State
	if e.Generation > 1 {
		state += fmt.Sprintf(", generation %d", e.Generation)
	}
	t.paragraph("", fmt.Sprintf("run %s (%s): %s, %s of %s items done, %s failed; as of %s", e.Run, inert(name), state,
		count(e.Done), count(e.Items), count(e.Failed), moment(e.At)))
	if e.Last != nil {
		t.field("last", t.happening(e.Last))
	}
	for i := range e.Groups {
		t.group(&e.Groups[i], len(e.Steps) > 0)
	}
	for i := range e.Steps {
		t.leftOut(&e.Steps[i])
	}
	t.advice(e.Advice)
	for _, note := range e.Notes {
		t.field("note", inert(note))
	}
	for i := range e.Of {
		t.b.WriteString("\n" + itemText(&e.Of[i]))
	}
	return t.b.String()
}

func explainWidth(room int) int {
	if room <= 0 {
		return explainColumns
	}
	return max(min(room, explainColumns), 40)
}

// prose is text in lines of a width.
type prose struct {
	b       strings.Builder
	columns int
	now     time.Time // by the database's clock
}

// fieldIndent is where the text of a field begins.
const fieldIndent = 12

// leftOut says what a step leaves out.
func (t *prose) leftOut(s *client.StepStanding) {
	var causes []string
	for _, l := range s.LeftOut {
		causes = append(causes, fmt.Sprintf("%s because step %s failed", count(l.Items), inert(l.Because)))
	}
	if len(causes) > 0 {
		t.field("left out", fmt.Sprintf("step %s leaves out %s", inert(s.Name), strings.Join(causes, ", ")))
	}
}

func (t *prose) group(g *client.MissingGroup, several bool) {
	head := count(g.Items) + " items"
	if g.Items == 1 {
		head = "1 item"
	}
	head += " " + g.State
	switch {
	case g.Slices == 1:
		head += " in 1 request"
	case g.Slices > 1:
		head += fmt.Sprintf(" in %s requests", count(g.Slices))
	}
	if g.Runs > 1 {
		head += fmt.Sprintf(" of %s runs", count(g.Runs))
	}
	t.b.WriteString("\n")
	if several && g.Step != "" {
		head = "step " + inert(g.Step) + ": " + head
	}
	t.paragraph("", fmt.Sprintf("%s: %s", head, strings.ReplaceAll(g.Reason, "_", " ")))
	t.field("turn", string(g.Owner)+": "+inert(g.Who))
	t.field("why", inert(g.Why))
	if g.Since != nil {
		t.field("since", t.ago(*g.Since))
	}
	if g.Last != nil {
		t.field("last", t.happening(g.Last))
	}
	next := inert(g.Next)
	if g.When != nil {
		next += ": " + t.until(*g.When)
	}
	t.field("next", next)
	t.advice(g.Advice)
}

func (t *prose) advice(all []client.Advice) {
	for i, a := range all {
		head, do := "you could", inert(a.Do)
		if i > 0 {
			head, do = "or", strings.TrimPrefix(do, "or ")
		}
		if a.Command == "" {
			t.field(head, do)
			continue
		}
		t.field(head, do+":")
		t.b.WriteString(strings.Repeat(" ", fieldIndent) + inert(a.Command) + "\n") // never broken: it is to be copied
	}
}

func (t *prose) happening(h *client.Happening) string { return t.ago(h.At) + ": " + inert(h.What) }

// ago writes a time that has come.
func (t *prose) ago(at time.Time) string {
	d := t.now.Sub(at)
	if d < time.Second {
		return "just now"
	}
	return span(d) + " ago (" + moment(at) + ")"
}

// until writes a time that is to come.
func (t *prose) until(at time.Time) string {
	d := at.Sub(t.now)
	if d < time.Second {
		return "within a second"
	}
	return "in " + span(d) + " (" + moment(at) + ")"
}

func (t *prose) field(name, text string) {
	t.paragraph("  "+name+strings.Repeat(" ", max(fieldIndent-2-len(name), 1)), text)
}

// paragraph writes a text behind a head, broken between words; its other lines are indented as the head is long.
func (t *prose) paragraph(head, text string) {
	indent := len([]rune(head))
	line, used := head, indent
	for word := range strings.FieldsSeq(text) {
		length := len([]rune(word))
		if used > indent && used+1+length > t.columns {
			t.b.WriteString(strings.TrimRight(line, " ") + "\n")
			line, used = strings.Repeat(" ", indent), indent
		}
		if used > indent {
			line, used = line+" ", used+1
		}
		line, used = line+word, used+length
	}
	t.b.WriteString(strings.TrimRight(line, " ") + "\n")
}

func capital(s string) string {
	if s == "" || s[0] < 'a' || s[0] > 'z' {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// endpointExplanationText is the same for an endpoint.
func endpointExplanationText(e *client.EndpointExplanation, room int) string {
	t := prose{columns: explainWidth(room), now: e.At}
	t.paragraph("", capital(inert(e.Summary))+".")
	t.field("listens", inert(e.Listens))
	t.field("as of", moment(e.At))
	for i := range e.Groups {
		t.group(&e.Groups[i], false)
	}
	for _, note := range e.Notes {
		t.field("note", inert(note))
	}
	return t.b.String()
}
