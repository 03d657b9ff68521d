package workqueue

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"time"
)

// Document is a text to be saved: a plan, schedule, alert or collector. The caller has validated it.
type Document struct {
	Name   string
	Spec   json.RawMessage // complete
	Source string          // as the user wrote it; valid UTF-8 without NUL
	Newest int             // only if this is the newest version; 0: any; -1: only if none exists
}

// The states of a document. A plan is always active.
const (
	DocumentActive  = "active"
	DocumentPaused  = "paused"
	DocumentDeleted = "deleted"
)

// AppliedDocument is the outcome of saving a document.
type AppliedDocument struct {
	Name       string     `json:"name"`
	Version    int        `json:"version"`
	Unchanged  bool       `json:"unchanged" doc:"it was so before: nothing was done"`
	Previous   int        `json:"previous,omitempty" doc:"the version before; absent for the first"`
	State      string     `json:"state" enum:"active,paused" doc:"what is paused stays paused"`
	NextDue    *time.Time `json:"next_due,omitempty" doc:"of a schedule; absent: it is never due again"`
	Renumbered bool       `json:"renumbered,omitempty" doc:"a collector's keys are made otherwise: what waits goes first"`
	Warnings   []string   `json:"warnings,omitempty" doc:"what may be a mistake, or does not exist yet"`
	ChangedBy  string     `json:"changed_by"`
	ChangedAt  time.Time  `json:"changed_at"`
}

// ControlledDocument is a document that was paused, resumed or deleted.
type ControlledDocument struct {
	Name      string     `json:"name"`
	State     string     `json:"state" enum:"active,paused,deleted"`
	Unchanged bool       `json:"unchanged" doc:"it was so before: nothing was done"`
	Version   int        `json:"version"`
	NextDue   *time.Time `json:"next_due,omitempty" doc:"absent: it is not due again, or not before it is resumed"`
	Waiting   int64      `json:"waiting" doc:"messages, due times or operations that wait, or are dropped"`
	Parked    int64      `json:"parked,omitempty" doc:"operations of a collector, in addition"`
}

// MovedError is returned if a document was based on a version that is not the newest.
type MovedError struct {
	Kind, Name     string
	Wanted, Newest int // Wanted is -1, or Newest 0, if none was to exist, or does
}

func (e *MovedError) Error() string {
	switch {
	case e.Wanted < 0:
		return fmt.Sprintf("%s %s exists already, in version %d; nothing was applied", e.Kind, e.Name, e.Newest)
	case e.Newest == 0:
		return fmt.Sprintf("there is no %s %s; version %d was expected; nothing was applied", e.Kind, e.Name, e.Wanted)
	}
	return fmt.Sprintf("the newest version of %s %s is %d, and version %d was to be followed; nothing was applied. "+
		"Look at what is new, and apply it with that", e.Kind, e.Name, e.Newest, e.Wanted)
}

// DefaultNamespace owns what is made without naming a namespace. It always exists.
const DefaultNamespace = "default"

var namespaceName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// CheckNamespace refuses an invalid name of a namespace.
func CheckNamespace(name string) error {
	if namespaceName.MatchString(name) {
		return nil
	}
	return &SettingError{Detail: fmt.Sprintf("namespace: invalid name %.80q; use up to 32 lower-case letters, digits "+
		"and, between them, hyphens", name)}
}

// Scope is the part of the installation that a caller acts in. Every statement that lists or finds what a namespace
// owns is limited to it. The zero value is everything, and makes things in DefaultNamespace.
type Scope struct {
	Namespaces []string // visible ones; nil: all
	Into       string   // owns what the caller makes; empty: DefaultNamespace
}

type scopeKey struct{}

// InScope returns a context limited to a scope.
func InScope(ctx context.Context, s Scope) context.Context {
	return context.WithValue(ctx, scopeKey{}, s)
}

// Namespaces returns what a context is limited to; nil: nothing, all is visible. As a parameter of SQL nil is NULL.
func Namespaces(ctx context.Context) []string {
	s, _ := ctx.Value(scopeKey{}).(Scope)
	return s.Namespaces
}

// Into returns the namespace that owns what is made in a context.
func Into(ctx context.Context) string {
	if s, _ := ctx.Value(scopeKey{}).(Scope); s.Into != "" {
		return s.Into
	}
	return DefaultNamespace
}

// Within limits a context to the namespace in which it makes things: what they refer to must be there, too.
func Within(ctx context.Context) context.Context {
	into := Into(ctx)
	return InScope(ctx, Scope{Namespaces: []string{into}, Into: into})
}

// Sees reports whether a context is not limited to other namespaces.
func Sees(ctx context.Context, namespace string) bool {
	all := Namespaces(ctx)
	return all == nil || slices.Contains(all, namespace)
}

// ElsewhereError is returned for a name that is taken in another namespace: names are unique in the installation.
type ElsewhereError struct {
	Kind, Name string
	Namespace  string // empty: the caller may not know
}

func (e *ElsewhereError) Error() string {
	if e.Namespace == "" {
		return fmt.Sprintf("the name of %s %q is taken in another namespace; choose another", e.Kind, e.Name)
	}
	return fmt.Sprintf("%s %q is in namespace %s; choose another name, or add --namespace %s", e.Kind, e.Name, e.Namespace,
		e.Namespace)
}

// UnknownNamespaceError is returned for a namespace that does not exist.
type UnknownNamespaceError struct{ Name string }

func (e *UnknownNamespaceError) Error() string {
	return fmt.Sprintf("there is no namespace %q; an admin makes it: tranche namespace set %s", e.Name, e.Name)
}
