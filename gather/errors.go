package gather

import (
	"fmt"
	"strings"
	"unicode"
)

// FieldError is returned for a plan that breaks a rule.
type FieldError struct {
	Field   string // like steps[0].chunk
	Problem string // what is wrong, and what is allowed
}

func (e *FieldError) Error() string { return fmt.Sprintf("plan: %s: %s", e.Field, e.Problem) }

func fieldError(field, format string, args ...any) *FieldError {
	return &FieldError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// ParseError is returned for YAML that is not a plan.
type ParseError struct {
	Plan    string // the name that Parse was given
	Line    int    // from 1; 0 when the input as a whole is at fault
	Column  int    // from 1, in characters
	Source  string // the line, as it stands there
	Problem string // what is wrong, with the field when it is known
}

// Error returns the place and the problem, and below them the source line with a mark.
func (e *ParseError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("plan %s: %s", e.Plan, e.Problem)
	}
	margin := fmt.Sprintf("%5d | ", e.Line)
	before, shown := e.window()
	return fmt.Sprintf("plan %s:%d:%d: %s\n%s%s\n%*s^", e.Plan, e.Line, e.Column, e.Problem,
		margin, shown, len(margin)+before, "")
}

// sourceWidth is how much of a source line an error shows.
const sourceWidth = 100

// window returns the part of the source line around the column, and how many characters stand before the column. What
// a terminal could take for a command is replaced.
func (e *ParseError) window() (before int, shown string) {
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
		return '\uFFFD'
	}
	return r
}
