package demo

import (
	"fmt"
	"strings"
)

// UnequalError is returned when the proof failed.
type UnequalError struct {
	File        string   // of the statements
	Differences []string // a line each
}

func (e *UnequalError) Error() string {
	return fmt.Sprintf("the statements in %s do not agree with the bank: %s", e.File, strings.Join(e.Differences, "; "))
}
