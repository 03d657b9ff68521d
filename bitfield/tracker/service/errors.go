package service

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/bitfield/tracker"
)

// ErrConflict is wrapped by every *ConflictError.
var ErrConflict = errors.New("the key is taken by something else")

// NotFoundError is returned for a batch that does not exist, is deleted, or was not opened by the service. It wraps
// tracker.ErrNotFound.
type NotFoundError struct {
	Batch uuid.UUID
}

func (e *NotFoundError) Error() string { return fmt.Sprintf("there is no tracker %s", e.Batch) }

// Unwrap returns tracker.ErrNotFound.
func (e *NotFoundError) Unwrap() error { return tracker.ErrNotFound }

// RequestError is returned for something that no tracker can do, before anything is read.
type RequestError struct {
	Field   string // what of the request is wrong, by its name in Go, in lower case with underscores
	Problem string // what is wrong, and what would be right
}

func (e *RequestError) Error() string { return e.Field + ": " + e.Problem }

// ConflictError is returned when a key, or an id, was used before for something else. It wraps ErrConflict.
type ConflictError struct {
	Batch uuid.UUID // the batch that has it
	Op    string    // open, add
	Key   string    // empty when it is about the id
	Field string    // what differs
	Was   string    // what it was the first time
	Is    string    // what it is now
}

func (e *ConflictError) Error() string {
	what := fmt.Sprintf("the key %q", e.Key)
	if e.Key == "" {
		what = "the id"
	}
	return fmt.Sprintf("%s was used before, for tracker %s, with %s %s, and now with %s: repeat the request as it was, "+
		"or choose another", what, e.Batch, e.Field, e.Was, e.Is)
}

// Unwrap returns ErrConflict.
func (e *ConflictError) Unwrap() error { return ErrConflict }

func wrap(op string, batch uuid.UUID, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s tracker %s: %w", op, batch, err)
}
