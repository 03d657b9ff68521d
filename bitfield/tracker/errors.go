package tracker

import (
	"cmp"
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
	// ErrNotFound is wrapped by errors about batches that do not exist.
	ErrNotFound = errors.New("no such tracker batch")
	// ErrExists is wrapped when an ID is taken.
	ErrExists = errors.New("the tracker batch exists already")
	// ErrNothing is wrapped when AddGroups gets no sizes or Rearm no members: there would be nothing to wait for.
	ErrNothing = errors.New("nothing was given")

	errTwice = errors.New("it was named twice; put its items together")
)

// NotFoundError is returned for a batch that does not exist or is deleted, and for a run's batch in place of a
// tracker. It wraps ErrNotFound.
type NotFoundError struct {
	Batch uuid.UUID
}

func (e *NotFoundError) Error() string { return fmt.Sprintf("there is no tracker %s", e.Batch) }

// Unwrap returns ErrNotFound.
func (*NotFoundError) Unwrap() error { return ErrNotFound }

// StateError is returned when a batch's state does not allow an operation.
type StateError struct {
	Batch uuid.UUID
	State State  // the current state
	Op    string // the operation
	Want  string // the states that allow it
}

func (e *StateError) Error() string {
	return fmt.Sprintf("%s: tracker batch %s is %s; it must be %s", e.Op, e.Batch, e.State, e.Want)
}

// GroupError is returned for a mask that fits no group of its batch: the group does not exist or is too small.
type GroupError struct {
	Batch  uuid.UUID
	Group  int
	Groups int // number of groups; 0 if unknown
	Size   int // the group's size; 0 if it does not exist
	Bit    int // the mask's largest member
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

// RequestError is returned for an invalid request, before anything is read.
type RequestError struct {
	Field   string // the Go field, in lower case with underscores
	Problem string // what is wrong and what is allowed
}

func (e *RequestError) Error() string { return e.Field + ": " + e.Problem }

// ConflictError is returned when a key or ID was used before with other settings.
type ConflictError struct {
	Batch uuid.UUID // the tracker that uses it
	Key   string    // empty for an ID
	Field string    // what differs
	Was   string    // the earlier value
	Is    string    // the new value
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

func notFound(op string, batch uuid.UUID, err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return &NotFoundError{batch}
	}
	return wrap(op, batch, err)
}

// Limits of trackers.
const (
	MaxAdd       = 1_000_000_000  // items per add
	MaxItems     = 10_000_000_000 // items per tracker
	MaxAckGroups = 20_000         // groups named by the masks of one ack: 20 MB; whole groups are unlimited
	MaxText      = 200            // characters of an owner, a key or a secret's name
	MaxCode      = 64             // characters of a code
	MaxURL       = 2000           // characters of a webhook's URL
	MaxPage      = 10_000         // rows of a page
)

// Default ages.
const (
	DefaultOpenIdle   = 24 * time.Hour     // after which an idle open tracker expires
	DefaultSealedIdle = 7 * 24 * time.Hour // after which an idle sealed tracker expires
	DefaultKeep       = 7 * 24 * time.Hour // for which an ended tracker is kept
)

// Bounds of the ages.
const (
	MinAge = time.Second
	MaxAge = 366 * 24 * time.Hour
)

// CheckText rejects a text that is too long, not UTF-8 or not printable. The error is a *RequestError.
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

// age applies the default and checks the bounds, in PostgreSQL's microseconds.
func age(field string, d *time.Duration, def time.Duration) error {
	*d = cmp.Or(*d, def)
	*d = d.Truncate(time.Microsecond)
	if *d < MinAge || *d > MaxAge {
		return &RequestError{Field: field, Problem: fmt.Sprintf("is %v; it must be from %v to %v", *d, MinAge, MaxAge)}
	}
	return nil
}

func page(limit int) int { return min(max(limit, 1), MaxPage) }

// clamp limits a group's number to the column's range; no groups exist beyond it.
func clamp(group int) int32 { return int32(min(max(group, 0), bitfield.MaxGroup)) }
