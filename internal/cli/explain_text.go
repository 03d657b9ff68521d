package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/orchestrator/client"
)

// explainColumns is how wide explanations are where there is room for it.
const explainColumns = 96

// ExplanationText is an explanation with the most important sentence first.
func ExplanationText(e *client.Explanation, room int) string {
	t := Prose{Columns: ExplainWidth(room), Now: e.At}
	t.Paragraph("", capital(Inert(e.Summary))+".")
	for i := range e.Groups { // what to do stands first, and once
		if g := &e.Groups[i]; g.Owner == client.OwnerOperator || g.Owner == client.OwnerNATS {
			t.advice(g.Advice)
		}
	}
	t.advice(e.Advice)
	state := e.State
	if e.Generation > 1 {
		state += fmt.Sprintf(", generation %d", e.Generation)
	}
	t.Paragraph("", fmt.Sprintf("run %s (%s): %s, %s of %s items done, %s failed; as of %s", e.Run,
		Inert(cmp.Or(e.Name, e.Plan)), state, Count(e.Done), Count(e.Items), Count(e.Failed), Moment(e.At)))
	if e.Last != nil {
		t.Field("last", t.happening(e.Last))
	}
	for i := range e.Groups {
		t.group(&e.Groups[i], len(e.Steps) > 0)
	}
	for i := range e.Steps {
		t.leftOut(&e.Steps[i])
	}
	for _, note := range e.Notes {
		t.Field("note", Inert(note))
	}
	for i := range e.Of {
		t.B.WriteString("\n" + ItemText(&e.Of[i], room))
	}
	return t.B.String()
}

// ExplainWidth is how wide prose is where there is so much room; 0: any.
func ExplainWidth(room int) int {
	if room <= 0 {
		return explainColumns
	}
	return max(min(room, explainColumns), 40)
}

// Prose is text in lines of a width.
type Prose struct {
	B       strings.Builder
	Columns int
	Now     time.Time // by the database's clock

	advised []client.Advice // that stands there already
}

// fieldIndent is where the text of a field begins.
const fieldIndent = 12

// leftOut says what a step leaves out.
func (t *Prose) leftOut(s *client.StepStanding) {
	var causes []string
	for _, l := range s.LeftOut {
		causes = append(causes, fmt.Sprintf("%s because step %s failed", Count(l.Items), Inert(l.Because)))
	}
	if len(causes) > 0 {
		t.Field("left out", fmt.Sprintf("step %s leaves out %s", Inert(s.Name), strings.Join(causes, ", ")))
	}
}

func (t *Prose) group(g *client.MissingGroup, several bool) {
	head := Plural(g.Items, "item") + " " + g.State
	if g.Slices > 0 {
		head += " in " + Plural(g.Slices, "request")
	}
	if g.Runs > 1 {
		head += fmt.Sprintf(" of %s runs", Count(g.Runs))
	}
	t.B.WriteString("\n")
	if several && g.Step != "" {
		head = "step " + Inert(g.Step) + ": " + head
	}
	t.Paragraph("", fmt.Sprintf("%s: %s", head, strings.ReplaceAll(g.Reason, "_", " ")))
	var parts []string
	for _, p := range g.Steps {
		parts = append(parts, Inert(p.Step)+" "+Count(p.Items))
	}
	if len(parts) > 0 {
		t.Field("steps", strings.Join(parts, ", "))
	}
	t.Field("turn", string(g.Owner)+": "+Inert(g.Who))
	t.Field("why", Inert(g.Why))
	if g.Since != nil {
		t.Field("since", t.Ago(*g.Since))
	}
	if g.Last != nil {
		t.Field("last", t.happening(g.Last))
	}
	next := Inert(g.Next)
	if g.When != nil {
		next += ": " + t.until(*g.When)
	}
	t.Field("next", next)
	t.advice(g.Advice)
}

// advice writes what has not been advised before.
func (t *Prose) advice(all []client.Advice) {
	first := true
	for _, a := range all {
		if slices.Contains(t.advised, a) {
			continue
		}
		t.advised = append(t.advised, a)
		head, do := "you could", Inert(a.Do)
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
		t.B.WriteString(strings.Repeat(" ", fieldIndent) + Inert(a.Command) + "\n") // never broken: it is to be copied
	}
}

func (t *Prose) happening(h *client.Happening) string { return t.Ago(h.At) + ": " + Inert(h.What) }

// Ago writes a time that has come.
func (t *Prose) Ago(at time.Time) string {
	d := t.Now.Sub(at)
	if d < time.Second {
		return "just now"
	}
	return Span(d) + " ago (" + Moment(at) + ")"
}

// until writes a time that is to come.
func (t *Prose) until(at time.Time) string {
	d := at.Sub(t.Now)
	if d < time.Second {
		return "within a second"
	}
	return "in " + Span(d) + " (" + Moment(at) + ")"
}

// Field writes a line with a name before it.
func (t *Prose) Field(name, text string) {
	t.Paragraph("  "+name+strings.Repeat(" ", max(fieldIndent-2-len(name), 1)), text)
}

// Paragraph writes a text behind a head, broken between words; its other lines are indented as the head is long. A
// command, which stands between backquotes, is never broken: it is to be copied.
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

// words are a text's words; what stands between backquotes is one.
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

// EndpointExplanationText is the same for an endpoint.
func EndpointExplanationText(e *client.EndpointExplanation, room int) string {
	t := Prose{Columns: ExplainWidth(room), Now: e.At}
	t.Paragraph("", capital(Inert(e.Summary))+".")
	t.Field("listens", Inert(e.Listens))
	t.Field("as of", Moment(e.At))
	for i := range e.Groups {
		t.group(&e.Groups[i], false)
	}
	for _, note := range e.Notes {
		t.Field("note", Inert(note))
	}
	return t.B.String()
}
