package schedules

import "fmt"

// SourceError says why the items of a run cannot be had.
type SourceError struct {
	Problem string
	Passes  bool // it may be otherwise later: a file that is not there yet, a service that is down
}

func (e *SourceError) Error() string { return e.Problem }

func refused(format string, args ...any) error {
	return &SourceError{Problem: fmt.Sprintf(format, args...)}
}

func later(format string, args ...any) error {
	return &SourceError{Problem: fmt.Sprintf(format, args...), Passes: true}
}

// NoItemsError says that there are no items: there is nothing to run, and nothing is wrong.
type NoItemsError struct{ Source string }

func (e *NoItemsError) Error() string { return "there are no items: " + e.Source + " has none" }
