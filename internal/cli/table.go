package cli

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"
)

// Table is rows of cells, aligned in columns.
type Table struct {
	rows  [][]string
	right map[int]bool // columns of numbers, which are never cut
	out   map[int]bool // columns without a place, by their place in Row
	room  int          // characters of a line; 0: as many as it takes
}

// NewTable returns a table with its head: the columns, as in "KEY|ITEMS>|MESSAGE?". A > marks numbers, which stand to
// the right and are never cut, and a ? what a narrow terminal has no place for. Without names there is no head. A line
// has room characters; 0: as many as it takes.
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

// minCell is how many characters are left of a cell that is cut, at the least.
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

// Field adds a row with a name and a value, unless that is zero.
func (t *Table) Field(name string, value any) {
	if v := reflect.ValueOf(value); v.IsValid() && !v.IsZero() {
		t.Row(name, value)
	}
}

// Len is the number of rows.
func (t *Table) Len() int { return len(t.rows) }

// Cell is a value as a person reads it: text that is safe to print, numbers with separators, times by the reader's
// clock, and a dash for what is not there.
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
	return Inert(fmt.Sprint(value))
}

// String lays the table out, two spaces between columns, no spaces at the ends of lines.
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

// fit makes columns of text narrower, the widest first, until a line has room.
func (t *Table) fit(widths []int) {
	const gap = 2
	line := -gap
	for _, w := range widths {
		line += w + gap
	}
	for t.room > 0 && line > t.room {
		widest, next := -1, minCell
		for i, w := range widths {
			switch {
			case t.right[i] || w <= minCell:
			case widest < 0 || w > widths[widest]:
				if widest >= 0 {
					next = widths[widest]
				}
				widest = i
			default:
				next = max(next, w)
			}
		}
		if widest < 0 {
			return
		}
		less := min(line-t.room, max(widths[widest]-next, 1))
		widths[widest] -= less
		line -= less
	}
}

// List is how a command lists things.
type List[T any] struct {
	Columns string         // as NewTable has them
	Row     func(*T) []any // a cell for each column
	Empty   string         // what to say when there is nothing to list
	Next    any            // where the next page begins, by --after; zero, or a nil pointer, at the end
	More    bool           // there are more, and --limit shows them
}

// Print ends the command with the error, the answer as it was sent, or the list.
func (l *List[T]) Print(c *Console, all []T, err error) error {
	switch {
	case err != nil || c.JSON:
		return c.Answered(err)
	case len(all) == 0 && l.Empty != "":
		return c.Printf("%s\n", l.Empty)
	}
	if err := c.Printf("%s", l.Text(all, c.Room())); err != nil {
		return err
	}
	if next := reflect.ValueOf(l.Next); next.IsValid() && !next.IsZero() {
		c.Note("there are more; go on with --after %v", reflect.Indirect(next).Interface())
	}
	return nil
}

// Text lays the list out.
func (l *List[T]) Text(all []T, room int) string {
	t := NewTable(l.Columns, room)
	for i := range all {
		t.Row(l.Row(&all[i])...)
	}
	if l.More {
		return t.String() + "there are more: --limit shows up to 500\n"
	}
	return t.String()
}

// Within refuses a number that is given and not from 1 to most.
func Within(flag string, n *int, most int) error {
	if n != nil && (*n < 1 || *n > most) {
		return fmt.Errorf("%s is %d; it must lie between 1 and %d", flag, *n, most)
	}
	return nil
}
