package strictyaml

import (
	"fmt"
	"strings"
	"unicode"
)

// Error is returned for a text that is not what it should be.
type Error struct {
	Kind    string // what it should be, like collector
	Name    string // what the caller calls it; may be empty
	Line    int    // from 1; 0 when the text as a whole is at fault
	Column  int    // from 1, in characters
	Source  string // the line, as it stands there; empty when it is not to be shown
	Problem string // what is wrong, with the field when it is known
}

// Error returns the place and the problem, and below them the source line with a mark.
func (e *Error) Error() string {
	input := strings.TrimSpace(e.Kind + " " + e.Name)
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", input, e.Problem)
	}
	place := fmt.Sprintf("%s:%d:%d: %s", input, e.Line, e.Column, e.Problem)
	if e.Source == "" {
		return place
	}
	margin := fmt.Sprintf("%5d | ", e.Line)
	before, shown := e.window()
	return fmt.Sprintf("%s\n%s%s\n%*s^", place, margin, shown, len(margin)+before, "")
}

// sourceWidth is how much of a source line an error shows.
const sourceWidth = 100

// window returns the part of the source line around the column, and how many characters stand before the column. What
// a terminal could take for a command is replaced.
func (e *Error) window() (before int, shown string) {
	line := []rune(e.Source)
	column := min(max(e.Column-1, 0), len(line))
	from := max(0, column-sourceWidth/2)
	to := min(len(line), from+sourceWidth)
	return column - from, strings.Map(inert, string(line[from:to]))
}

func inert(r rune) rune {
	switch {
	case r == '\t':
		return ' '
	case !unicode.IsPrint(r):
		return unicode.ReplacementChar
	}
	return r
}
