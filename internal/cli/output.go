package cli

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tranchehq/tranche/workqueue/control"
)

// Print ends a command: with the error, the answer as received, or text, called with the line's room.
func Print[T any](c *Console, text func(answer *T, room int) string) func(T, error) error {
	return func(answer T, err error) error {
		if err != nil || c.JSON {
			return c.Answered(err)
		}
		return c.Printf("%s", text(&answer, c.Room()))
	}
}

// Say is Print for short text of any width.
func Say[T any](c *Console, text func(answer *T) string) func(T, error) error {
	return Print(c, func(answer *T, _ int) string { return text(answer) + "\n" })
}

// Narrow reports whether a line has room for the essentials only.
func Narrow(room int) bool { return room > 0 && room < 100 }

// Short shortens a text to limit characters.
func Short(s string, limit int) string {
	runes := []rune(s)
	if len(runes) <= limit {
		return s
	}
	return string(runes[:max(limit-1, 0)]) + "…"
}

// maxShown limits a payload or result on a terminal, in characters. --json has all of it.
const maxShown = 2000

// Shown shortens a text for a terminal; without a room it stays whole.
func Shown(s string, room int) string {
	if room == 0 {
		return s
	}
	return Short(s, maxShown)
}

// Pace formats a rate per second; slow rates are not rounded to 0.
func Pace(rate float64) string {
	switch {
	case rate > 0 && rate < 0.1:
		return fmt.Sprintf("%.1g", rate)
	case rate < 10:
		return fmt.Sprintf("%.1f", rate)
	default:
		return Count(int64(min(rate, 1e18)))
	}
}

// Count formats a number with separators: 1,234,567.
func Count(n int64) string { return control.Grouped(n) }

// Span formats a duration: 0.8s, 12s, 3m05s, 2h10m.
func Span(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	default:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
}

// ShortTime drops zero parts of a duration: 1h, not 1h0m0s.
func ShortTime(setting string) string {
	if minutes, ok := strings.CutSuffix(setting, "m0s"); ok {
		setting = minutes + "m"
	}
	if hours, ok := strings.CutSuffix(setting, "h0m"); ok {
		setting = hours + "h"
	}
	return setting
}

// Seconds converts seconds to a duration.
func Seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Moment formats a local time, with the date unless it is today.
func Moment(t time.Time) string {
	t = t.Local()
	if t.Format(time.DateOnly) == time.Now().Format(time.DateOnly) {
		return t.Format("15:04:05 MST")
	}
	return t.Format("2006-01-02 15:04:05 MST")
}

// Ahead formats a local time with its date and zone, and how far off it is: 2026-11-29 06:00 CET (in 7h40m).
func Ahead(t time.Time) string {
	text := t.Local().Format("2006-01-02 15:04 MST")
	if left := time.Until(t); left > 0 {
		return text + " (in " + Span(left) + ")"
	}
	return text + " (" + Span(time.Since(t)) + " ago)"
}

// Table is rows of aligned cells.
type Table struct {
	rows  [][]string
	right map[int]bool // numeric columns, never cut
	out   map[int]bool // hidden columns, by index in Row
	room  int          // characters per line; 0: unlimited
}

// NewTable returns a table with a head of columns, as in "KEY|ITEMS>|MESSAGE?". A > marks numbers, right-aligned and
// never cut; a ? marks columns hidden on narrow terminals. Without names it has no head. room 0: lines of any length.
func NewTable(columns string, room int) *Table {
	t := &Table{right: map[int]bool{}, out: map[int]bool{}, room: room}
	var head []any
	for i, name := range strings.Split(columns, "|") {
		name, t.right[i] = strings.CutSuffix(name, ">")
		name, t.out[i] = strings.CutSuffix(name, "?")
		t.out[i] = t.out[i] && Narrow(room)
		head = append(head, name)
	}
	if strings.Trim(columns, "|>") != "" {
		t.Row(head...)
	}
	return t
}

const minCell = 12

// Row adds a row.
func (t *Table) Row(cells ...any) {
	var row []string
	for i, cell := range cells {
		if !t.out[i] {
			row = append(row, Cell(cell))
		}
	}
	t.rows = append(t.rows, row)
}

// Field adds a name and a value, unless the value is zero.
func (t *Table) Field(name string, value any) {
	if v := reflect.ValueOf(value); v.IsValid() && !v.IsZero() {
		t.Row(name, value)
	}
}

// Len is the number of rows.
func (t *Table) Len() int { return len(t.rows) }

// Cell formats a value: text safe to print, numbers with separators, local times, and a dash for nil.
func Cell(value any) string {
	switch v := reflect.ValueOf(value); {
	case v.Kind() == reflect.Pointer && v.IsNil():
		return "-"
	case v.Kind() == reflect.Pointer:
		return Cell(v.Elem().Interface())
	case v.CanInt():
		return Count(v.Int())
	case v.CanUint():
		return Count(int64(min(v.Uint(), math.MaxInt64)))
	}
	if at, ok := value.(time.Time); ok {
		return Moment(at)
	}
	return EscapeControl(fmt.Sprint(value))
}

// Say adds a name and a text.
func (t *Table) Say(name, format string, args ...any) { t.Row(name, Text(format, args...)) }

// If is Say where the condition holds.
func (t *Table) If(holds bool, name, format string, args ...any) {
	if holds {
		t.Say(name, format, args...)
	}
}

// Text is fmt.Sprintf with the arguments formatted by [Cell], for %v.
func Text(format string, args ...any) string {
	cells := make([]any, len(args))
	for i := range args {
		cells[i] = Cell(args[i])
	}
	return fmt.Sprintf(format, cells...)
}

// If is Text where the condition holds, else empty.
func If(holds bool, format string, args ...any) string {
	if !holds {
		return ""
	}
	return Text(format, args...)
}

// Each is the texts of all entries in order.
func Each[T any](all []T, text func(*T) string) string {
	var b strings.Builder
	for i := range all {
		b.WriteString(text(&all[i]))
	}
	return b.String()
}

// Join joins the texts that are not empty.
func Join(between string, texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(text string) bool { return text == "" }), between)
}

// String lays the table out, with two spaces between columns and no trailing spaces.
func (t *Table) String() string {
	var widths []int
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	t.fit(widths)
	var b strings.Builder
	for _, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			cell = Short(cell, widths[i])
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if t.right[i] {
				cell, pad = pad+cell, ""
			}
			line.WriteString(cell + pad + "  ")
		}
		text := strings.TrimRight(line.String(), " ")
		if t.room > 0 {
			text = Short(text, t.room)
		}
		b.WriteString(text + "\n")
	}
	return b.String()
}

func (t *Table) fit(widths []int) {
	const gap = 2
	line := -gap
	for _, w := range widths {
		line += w + gap
	}
	for ; t.room > 0 && line > t.room; line-- {
		widest := -1
		for i, w := range widths {
			if !t.right[i] && w > minCell && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		widths[widest]--
	}
}

// List is the output of a listing command.
type List[T any] struct {
	Columns string         // as in NewTable
	Row     func(*T) []any // a cell per column
	Empty   string         // text if there are no rows
	Next    any            // start of the next page, for --after; zero or nil at the end
	Before  bool           // --before instead

	Below func(*T) string // text below a row; may be nil
}

// Print ends the command with the error, the answer as received, or the list.
func (l *List[T]) Print(c *Console, all []T, err error) error {
	if err != nil || c.JSON {
		return c.Answered(err)
	}
	text, more := l.Text(all, c.Room()), "are"
	if len(all) == 0 && l.Empty != "" {
		text, more = l.Empty+"\n", "may be"
	}
	if err := c.Printf("%s", text); err != nil {
		return err
	}
	next := reflect.ValueOf(l.Next)
	if !next.IsValid() || next.IsZero() {
		return nil
	}
	from, flag := reflect.Indirect(next).Interface(), "after"
	if at, ok := from.(time.Time); ok {
		from = at.UTC().Format(time.RFC3339Nano)
	}
	if l.Before {
		flag = "before"
	}
	c.Note("there %s more; continue with --%s %v", more, flag, from)
	return nil
}

// Text lays the list out.
func (l *List[T]) Text(all []T, room int) string {
	t := NewTable(l.Columns, room)
	for i := range all {
		t.Row(l.Row(&all[i])...)
	}
	if l.Below == nil {
		return t.String()
	}
	out := Prose{Columns: ExplainWidth(room)}
	for i, line := range slices.Collect(strings.Lines(t.String())) {
		out.B.WriteString(line)
		if i == 0 { // the head
			continue
		}
		if text := l.Below(&all[i-1]); text != "" {
			out.Paragraph(strings.Repeat(" ", 8), text)
		}
	}
	return out.B.String()
}

// EscapeControl makes untrusted text safe to print on one line of a terminal: characters that could move the cursor,
// change colors or reverse the direction of writing become escapes.
func EscapeControl(s string) string { return escape(s, "") }

// InertText is EscapeControl that keeps line breaks and tabs.
func InertText(s string) string { return escape(s, "\n\t") }

func escape(s, kept string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsPrint(r), strings.ContainsRune(kept, r):
			b.WriteRune(r)
		case r < utf8.RuneSelf:
			fmt.Fprintf(&b, `\x%02x`, r)
		default: // format characters, such as bidi overrides, and odd spaces
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += size
	}
	return b.String()
}

// Unescaped undoes EscapeControl; false: no escape found. A literal text may look like an escape, so try the text
// itself first.
func Unescaped(s string) (text string, escaped bool) {
	var b strings.Builder
	for i := 0; i < len(s); {
		digits := 0
		if rest := s[i:]; strings.HasPrefix(rest, `\x`) {
			digits = 2
		} else if strings.HasPrefix(rest, `\u`) {
			digits = 4
		}
		if end := i + 2 + digits; digits > 0 && end <= len(s) {
			if n, err := strconv.ParseUint(s[i+2:end], 16, 32); err == nil {
				b.WriteRune(rune(n))
				i, escaped = end, true
				continue
			}
		}
		b.WriteByte(s[i])
		i++
	}
	return b.String(), escaped
}

// ShortID is the time part of an ID, to the millisecond: enough to name a run.
func ShortID(id string) string { return id[:min(len(id), 13)] }

// ShortRun is ShortID of an optional run.
func ShortRun(id *string) string {
	if id == nil {
		return "-"
	}
	return EscapeControl(ShortID(*id))
}

// OrDash returns a text, or a dash if empty.
func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return EscapeControl(s)
}

// Rate formats items per second.
func Rate(perSecond float64) string {
	if perSecond <= 0 {
		return "-"
	}
	return Pace(perSecond) + "/s"
}

// PerItem formats the time per item.
func PerItem(millis float64) string {
	switch d := time.Duration(millis * float64(time.Millisecond)); {
	case d <= 0:
		return "-"
	case d < time.Millisecond:
		return fmt.Sprintf("%dµs", max(d.Microseconds(), 1))
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1fms", millis)
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	default:
		return Span(d)
	}
}

// Plural formats a number of things.
func Plural(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%s %ss", Count(n), noun)
}

// Gibibytes formats bytes.
func Gibibytes(n int64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }

// MomentOrNever formats an optional time.
func MomentOrNever(at *time.Time) string {
	if at == nil {
		return "never"
	}
	return Moment(*at)
}
