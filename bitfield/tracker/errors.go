package tracker

import (
	"errors"
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
)

var (
	// ErrNotFound is wrapped by every error about a batch that does not exist.
	ErrNotFound = errors.New("no such tracker batch")
	// ErrExists is wrapped when a batch is opened under an id that is taken.
	ErrExists = errors.New("the tracker batch exists already")
	// ErrNothing is wrapped when AddGroups gets no sizes, or Rearm no members: the call would have no effect that
	// anyone could later wait for.
	ErrNothing = errors.New("nothing was given")

	errTwice = errors.New("it was named twice; put its items together")
)

// NotFoundError is returned for a batch that does not exist or is deleted, and for a run's where a tracker is meant. It
// wraps ErrNotFound.
type NotFoundError struct {
	Batch uuid.UUID
}

func (e *NotFoundError) Error() string { return fmt.Sprintf("there is no tracker %s", e.Batch) }

// Unwrap returns ErrNotFound.
func (*NotFoundError) Unwrap() error { return ErrNotFound }

// StateError is returned when an operation does not fit the state that a batch is in.
type StateError struct {
	Batch uuid.UUID
	State State  // the state it is in
	Op    string // what was asked
	Want  string // the states in which it can be done
}

func (e *StateError) Error() string {
	return fmt.Sprintf("%s: tracker batch %s is %s; it must be %s", e.Op, e.Batch, e.State, e.Want)
}

// GroupError is returned for a mask that fits no group of its batch: there is no such group, or it is too small.
type GroupError struct {
	Batch  uuid.UUID
	Group  int
	Groups int // how many groups the batch has; 0 when that was not looked up
	Size   int // the size of the group; 0 when there is no such group
	Bit    int // the largest member of the mask
}

func (e *GroupError) Error() string {
	switch {
	case e.Size == 0 && e.Groups == 0:
		return fmt.Sprintf("tracker batch %s has no group %d", e.Batch, e.Group)
	case e.Size == 0:
		return fmt.Sprintf("tracker batch %s has no group %d: it has groups 0 to %d", e.Batch, e.Group, e.Groups-1)
	}
	return fmt.Sprintf("group %d of tracker batch %s has no item %d: it has items 0 to %d",
		e.Group, e.Batch, e.Bit, e.Size-1)
}

// RequestError is returned for something that no tracker can do, before anything is read.
type RequestError struct {
	Field   string // what of the request is wrong, by its name in Go, in lower case with underscores
	Problem string // what is wrong, and what would be right
}

func (e *RequestError) Error() string { return e.Field + ": " + e.Problem }

// ConflictError is returned when a key, or an id, was used before for something else.
type ConflictError struct {
	Batch uuid.UUID // the tracker that has it
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

func wrap(op string, batch uuid.UUID, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s tracker batch %s: %w", op, batch, err)
}

// notFound is wrap of what a query of one row came to.
func notFound(op string, batch uuid.UUID, err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return &NotFoundError{batch}
	}
	return wrap(op, batch, err)
}

// Limits of what trackers take.
const (
	MaxAdd       = 1_000_000_000  // items of one add
	MaxItems     = 10_000_000_000 // items of a tracker
	MaxAckGroups = 20_000         // groups that the masks of one ack name: 20 MB; whole groups are not limited
	MaxText      = 200            // characters of an owner, a key, the name of a secret
	MaxCode      = 64             // characters of a code
	MaxURL       = 2000           // characters of a webhook's URL
	MaxPage      = 10_000         // rows of a page
)

// Ages that hold unless others are asked for.
const (
	DefaultOpenIdle   = 24 * time.Hour     // an open tracker that no one touched expires
	DefaultSealedIdle = 7 * 24 * time.Hour // so does a sealed one
	DefaultKeep       = 7 * 24 * time.Hour // how long a completed or expired one can be asked for
)

// Bounds of the three ages.
const (
	MinAge = time.Second
	MaxAge = 366 * 24 * time.Hour
)

// CheckText refuses a name that is too long, or that displays as something else. The error is a *RequestError.
func CheckText(field, value string, limit int) error {
	switch n := utf8.RuneCountInString(value); {
	case !utf8.ValidString(value):
		return &RequestError{Field: field, Problem: "is not valid UTF-8"}
	case n > limit:
		return &RequestError{Field: field, Problem: fmt.Sprintf("has %d characters; at most %d are taken", n, limit)}
	}
	for i, r := range value {
		if !unicode.IsPrint(r) {
			return &RequestError{Field: field, Problem: fmt.Sprintf("has the unprintable character %U at byte %d", r, i)}
		}
	}
	return nil
}

// age applies the default and checks the bounds. PostgreSQL keeps microseconds.
func age(field string, d *time.Duration, def time.Duration) error {
	if *d == 0 {
		*d = def
	}
	*d = d.Truncate(time.Microsecond)
	if *d < MinAge || *d > MaxAge {
		return &RequestError{Field: field, Problem: fmt.Sprintf("is %v; it must be from %v to %v", *d, MinAge, MaxAge)}
	}
	return nil
}

// page is a limit as the statements take it.
func page(limit int) int { return min(max(limit, 1), MaxPage) }

// clamp keeps a group's number within what the column holds: past the end there is nothing anyway.
func clamp(group int) int32 { return int32(min(max(group, 0), bitfield.MaxGroup)) }
