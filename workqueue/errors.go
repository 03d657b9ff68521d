package workqueue

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// ErrNotFound is wrapped by every error about a run, item or step that does not exist.
	ErrNotFound = errors.New("not found")
	// ErrSessionLost is returned when a node's session has expired: what it holds has been, or is about to be, given
	// to others.
	ErrSessionLost = errors.New("the node's session has expired")
	// ErrBusy is returned by a claim of a step that a re-run or a cancel is at work on.
	ErrBusy = errors.New("the step is held by another operation")
	// ErrNotLeader is returned by leader work whose lease has passed to another session.
	ErrNotLeader = errors.New("this session no longer leads")
)

// StateError is returned when an operation does not fit the state that a run is in.
type StateError struct {
	Run   RunID
	State string // the state it is in
	Op    string // what was asked
	Fix   string // what to do instead
}

func (e *StateError) Error() string {
	return fmt.Sprintf("cannot %s run %s: it is %s; %s", e.Op, e.Run, e.State, e.Fix)
}

// ParamsError is returned by Load for parameters that a run cannot have.
type ParamsError struct {
	Detail string // what is wrong, and what to do
}

func (e *ParamsError) Error() string { return e.Detail }

// AmbiguousError is returned when a prefix or a name fits more than one run.
type AmbiguousError struct {
	Ref     string
	Matches []RunID
}

func (e *AmbiguousError) Error() string {
	return fmt.Sprintf("%q fits %d runs, among them %s and %s; give more of the id", e.Ref, len(e.Matches),
		e.Matches[0], e.Matches[1])
}

// DuplicateKeyError is returned by intake when two items of a run have the same key.
type DuplicateKeyError struct {
	Key                   string
	First, Second         Ordinal
	FirstLine, SecondLine int    // 0 when the source has no lines
	Unit                  string // what they count; empty: lines
}

func (e *DuplicateKeyError) Error() string {
	const fix = "remove one of them, or choose to skip or to allow duplicates"
	switch unit := cmp.Or(e.Unit, "line"); {
	case e.FirstLine > 0 && e.SecondLine > 0 && e.Unit == "":
		return fmt.Sprintf("line %d: key %q stands on line %d already; %s", e.SecondLine, e.Key, e.FirstLine, fix)
	case e.FirstLine > 0 && e.SecondLine > 0:
		return fmt.Sprintf("%s %d: key %q is the key of %s %d already; %s", unit, e.SecondLine, e.Key, unit, e.FirstLine, fix)
	case e.SecondLine > 0:
		return fmt.Sprintf("%s %d: key %q is the key of item %d already; %s", unit, e.SecondLine, e.Key, e.First+1, fix)
	}
	return fmt.Sprintf("item %d: key %q is the key of item %d already; %s", e.Second+1, e.Key, e.First+1, fix)
}

// CleanupPendingError is returned by a load that failed and may have left something behind: PostgreSQL could not be
// reached, or did not say whether it had committed. [start.Store.ClearLoad] removes it later.
type CleanupPendingError struct {
	Run   RunID
	Cause error
}

func (e *CleanupPendingError) Error() string {
	return fmt.Sprintf("the load of run %s failed, and what it left will be cleared away later: %v", e.Run, e.Cause)
}

// Unwrap gives the reason why the load failed.
func (e *CleanupPendingError) Unwrap() error { return e.Cause }

// ErrFence is wrapped when a write found fewer rows than the transaction had locked: a fault of ours, never to be
// written over.
var ErrFence = errors.New("rows are not in the state they were locked in")

// Refused reports whether PostgreSQL will refuse the same write again: what was to be written breaks a constraint or
// cannot be stored, or the rows it speaks of are not in the state it needs.
func Refused(err error) bool {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		class := pg.Code[:2]
		return class == "22" || class == "23"
	}
	return errors.Is(err, ErrFence)
}

// SettingError is returned for a setting that an endpoint cannot have.
type SettingError struct{ Detail string }

func (e *SettingError) Error() string { return e.Detail }

// ThrottledCodes returns the error codes with which services refuse work because it is too much at the moment, as
// docs/protocol.md tells authors of services. Such items are retried without an attempt lost, and a pace learns a
// rate from them.
func ThrottledCodes() []string {
	return []string{"throttled", "throttling", "too_many_requests", "rate_limited", "rate_limit_exceeded", "429", "busy",
		"overloaded", "quota_exceeded"}
}

// Throttled reports whether a code is one of [ThrottledCodes].
func Throttled(code string) bool { return slices.Contains(ThrottledCodes(), code) }
