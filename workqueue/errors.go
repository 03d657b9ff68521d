package workqueue

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// ErrNotFound is wrapped by every error about something that does not exist, like a run, item, step or plan.
	ErrNotFound = errors.New("not found")
	// ErrSessionLost is returned if a node's session has expired: its slices are released to other nodes.
	ErrSessionLost = errors.New("the node's session has expired")
	// ErrBusy is returned by a claim of a step that a rerun or cancel has locked.
	ErrBusy = errors.New("the step is held by another operation")
	// ErrNotLeader is returned by leader work whose lease has passed to another session.
	ErrNotLeader = errors.New("this session no longer leads")
)

// StateError is returned if an operation does not fit the run's state.
type StateError struct {
	Run   RunID
	State string
	Op    string // the operation
	Fix   string // what to do instead
}

func (e *StateError) Error() string {
	return fmt.Sprintf("cannot %s run %s: it is %s; %s", e.Op, e.Run, e.State, e.Fix)
}

// ChangedError means that a setting no longer has the value the caller expects (if_was).
type ChangedError struct {
	Of, Setting string // of a run or an endpoint
	Want, Has   string
}

func (e *ChangedError) Error() string {
	return fmt.Sprintf("%s of %s is now %s, want %s; nothing was changed. To overwrite it, repeat with if_was %[1]s=%[3]s",
		e.Setting, e.Of, cmp.Or(e.Has, "none"), cmp.Or(e.Want, "none"))
}

// AmbiguousError is returned if a prefix or name matches several runs.
type AmbiguousError struct {
	Ref     string
	Matches []RunID
}

func (e *AmbiguousError) Error() string {
	return fmt.Sprintf("%q fits %d runs, among them %s and %s; give more of the id", e.Ref, len(e.Matches),
		e.Matches[0], e.Matches[1])
}

// DuplicateKeyError is returned by intake if two items of a run have the same key.
type DuplicateKeyError struct {
	Key                   string
	First, Second         Ordinal
	FirstLine, SecondLine int    // 0 when the source has no lines
	Unit                  string // what they count; empty: lines
}

func (e *DuplicateKeyError) Error() string {
	const fix = "remove one of them, or start or open the run with --on-duplicate skip"
	switch unit := cmp.Or(e.Unit, "line"); {
	case e.FirstLine > 0 && e.SecondLine > 0 && e.Unit == "":
		return fmt.Sprintf("line %d: key %q is on line %d already; %s", e.SecondLine, e.Key, e.FirstLine, fix)
	case e.FirstLine > 0 && e.SecondLine > 0:
		return fmt.Sprintf("%s %d: key %q is the key of %s %d already; %s", unit, e.SecondLine, e.Key, unit, e.FirstLine, fix)
	case e.SecondLine > 0:
		return fmt.Sprintf("%s %d: key %q is the key of item %d already; %s", unit, e.SecondLine, e.Key, e.First+1, fix)
	}
	return fmt.Sprintf("item %d: key %q is the key of item %d already; %s", e.Second+1, e.Key, e.First+1, fix)
}

// CleanupPendingError is returned by a failed load that may have left rows behind: PostgreSQL was unreachable or did
// not confirm the commit. [start.Store.ClearLoad] removes them later.
type CleanupPendingError struct {
	Run   RunID
	Cause error
}

func (e *CleanupPendingError) Error() string {
	return fmt.Sprintf("the load of run %s failed, and what it left will be cleared away later: %v", e.Run, e.Cause)
}

// Unwrap returns why the load failed.
func (e *CleanupPendingError) Unwrap() error { return e.Cause }

// ErrFence is wrapped if a write affected fewer rows than the transaction had locked. It is a bug.
var ErrFence = errors.New("rows are not in the state they were locked in")

// Refused reports whether PostgreSQL would refuse the write again: a constraint, invalid data, or the rows' state.
func Refused(err error) bool {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		class := pg.Code[:2]
		return class == "22" || class == "23"
	}
	return errors.Is(err, ErrFence)
}

// SettingError is returned for an invalid setting.
type SettingError struct{ Detail string }

func (e *SettingError) Error() string { return e.Detail }

// BadSetting returns a [SettingError] with a formatted detail.
func BadSetting(format string, args ...any) error {
	return &SettingError{Detail: fmt.Sprintf(format, args...)}
}

// ConflictError is returned for what does not fit the state of what it is about.
type ConflictError struct {
	Detail  string
	Nothing bool // a selection has nothing to change
}

func (e *ConflictError) Error() string { return e.Detail }

// Conflict returns a [ConflictError] with a formatted detail.
func Conflict(format string, args ...any) error {
	return &ConflictError{Detail: fmt.Sprintf(format, args...)}
}

// Nothing returns a [ConflictError] for a selection that has nothing to change: "nothing to ", and a formatted detail.
func Nothing(format string, args ...any) error {
	return &ConflictError{Detail: "nothing to " + fmt.Sprintf(format, args...), Nothing: true}
}

// TooLargeError is returned for what is too large for one request.
type TooLargeError struct{ Detail string }

func (e *TooLargeError) Error() string { return e.Detail }

// TooLarge returns a [TooLargeError] with a formatted detail.
func TooLarge(format string, args ...any) error {
	return &TooLargeError{Detail: fmt.Sprintf(format, args...)}
}

// ThrottledCodes returns the error codes with which services refuse excess work; docs/protocol.md documents them.
// Such items are retried without losing an attempt, and the pace learns a rate from them.
func ThrottledCodes() []string {
	return []string{"throttled", "throttling", "too_many_requests", "rate_limited", "rate_limit_exceeded", "429", "busy",
		"overloaded", "quota_exceeded"}
}

// Throttled reports whether a code is one of [ThrottledCodes].
func Throttled(code string) bool { return slices.Contains(ThrottledCodes(), code) }
