package demokit

import "fmt"

// BusyError is returned when another one works in the directory.
type BusyError struct{ Dir string }

func (e *BusyError) Error() string {
	return fmt.Sprintf("another one works in %s; wait for its end, or choose another directory with --dir", e.Dir)
}

// CommandError is returned when a program that was run ended with an exit code it should not have.
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
