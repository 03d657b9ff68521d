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

// BusyError is returned when another demo works in the directory.
type BusyError struct{ Dir string }

func (e *BusyError) Error() string {
	return fmt.Sprintf("another demo works in %s; wait for its end, or choose another directory with --dir", e.Dir)
}

// CommandError is returned when a program that the demo ran ended with an exit code it should not have.
type CommandError struct {
	Command string
	Code    int    // -1: ended by a signal
	Want    int    // the code it should have had
	Said    string // the last of what it wrote, where the person has not seen it
}

func (e *CommandError) Error() string {
	text := fmt.Sprintf("%s ended with exit code %d, not %d", e.Command, e.Code, e.Want)
	if e.Code < 0 {
		text = e.Command + " was ended by a signal"
	}
	if e.Said != "" {
		text += ":\n" + e.Said
	}
	return text
}
