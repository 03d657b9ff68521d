package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// database is the store's, which itself needs this package.
type database interface {
	InTx(ctx context.Context, f func(ctx context.Context, tx pgx.Tx) error) error
}

// Kind is a kind of document, and how it is stored.
type Kind struct {
	Name string // plan: in audited actions and messages

	// Hold reads and locks the document named $1: version, state, whether it is deleted, whether it has the spec $2
	// and the source $3, spec, next due time, last author, time of change and namespace.
	Hold string
	// Left counts what waits for the document named $1, and what of it is parked; empty: never anything.
	Left string
	// Moves says that a caller who sees both namespaces may move a document between them.
	Moves bool
}

// Held is a document as found by a change, with its row locked.
type Held struct {
	Version   int // 0: it never existed
	State     string
	Deleted   bool // or it never existed
	Same      bool
	Spec      json.RawMessage
	NextDue   *time.Time
	ChangedBy string
	ChangedAt time.Time
	Namespace string
}

// Serializes changes and deletions of a name, even if it does not exist.
const holdName = `SELECT pg_advisory_xact_lock(hashtext($1), hashtext($2))`

func (k Kind) hold(ctx context.Context, tx pgx.Tx, doc *workqueue.Document, alone bool) (h Held, err error) {
	if alone {
		if _, err := tx.Exec(ctx, holdName, k.Name, doc.Name); err != nil {
			return h, err
		}
	}
	spec := doc.Spec
	if spec == nil {
		spec = json.RawMessage("null")
	}
	err = tx.QueryRow(ctx, k.Hold, doc.Name, spec, doc.Source).Scan(&h.Version, &h.State, &h.Deleted, &h.Same, &h.Spec,
		&h.NextDue, &h.ChangedBy, &h.ChangedAt, &h.Namespace)
	if errors.Is(err, pgx.ErrNoRows) {
		return Held{Deleted: true}, nil
	}
	return h, err
}

// Find returns a document with its row locked. The error wraps ErrNotFound if it does not exist in the context's scope.
func (k Kind) Find(ctx context.Context, tx pgx.Tx, name string) (Held, error) {
	return k.find(ctx, tx, name, false)
}

func (k Kind) find(ctx context.Context, tx pgx.Tx, name string, alone bool) (was Held, err error) {
	if !pg.ValidText(name) {
		return was, fmt.Errorf("%s %q: %w", k.Name, name, workqueue.ErrNotFound)
	}
	was, err = k.hold(ctx, tx, &workqueue.Document{Name: name}, alone)
	switch {
	case err == nil && was.Version > 0 && !workqueue.Sees(ctx, was.Namespace): // as if it had never existed
	case err != nil || !was.Deleted:
		return was, err
	case was.Version > 0:
		return was, fmt.Errorf("%s %q was deleted: %w", k.Name, name, workqueue.ErrNotFound)
	}
	return was, fmt.Errorf("%s %q: %w", k.Name, name, workqueue.ErrNotFound)
}

func (k Kind) elsewhere(ctx context.Context, name, namespace string) error {
	if !workqueue.Sees(ctx, namespace) {
		namespace = ""
	}
	return &workqueue.ElsewhereError{Kind: k.Name, Name: name, Namespace: namespace}
}

// Apply creates or changes a document with write, and an audit entry. An identical text and meaning changes nothing.
func (k Kind) Apply(ctx context.Context, db database, doc *workqueue.Document, actor string,
	write func(ctx context.Context, tx pgx.Tx, was *Held, out *workqueue.AppliedDocument) error,
) (out workqueue.AppliedDocument, err error) {
	err = db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		was, err := k.hold(ctx, tx, doc, true)
		moved := was.Version > 0 && was.Namespace != workqueue.Into(ctx) // also a deleted one, for its history
		if err == nil && moved && (!k.Moves || !workqueue.Sees(ctx, was.Namespace)) {
			err = k.elsewhere(ctx, doc.Name, was.Namespace)
		}
		if err != nil {
			return err
		}
		out = workqueue.AppliedDocument{Name: doc.Name, Version: was.Version, State: was.State, NextDue: was.NextDue,
			ChangedBy: was.ChangedBy, ChangedAt: was.ChangedAt}
		if out.Unchanged = was.Same && !was.Deleted; out.Unchanged {
			return nil
		}
		change := Action{Actor: actor, Name: k.Name + "_apply", Subject: doc.Name}
		if was.Deleted {
			out.State = workqueue.DocumentActive
		} else {
			out.Previous = was.Version
			change.Before = map[string]any{"version": was.Version, "spec": was.Spec}
		}
		if doc.Newest != 0 && max(doc.Newest, 0) != out.Previous {
			return &workqueue.MovedError{Kind: k.Name, Name: doc.Name, Wanted: doc.Newest, Newest: out.Previous}
		}
		out.ChangedBy = pg.Plain(actor)
		if err := write(ctx, tx, &was, &out); err != nil {
			return err
		}
		change.After = map[string]any{"version": out.Version, "spec": doc.Spec}
		return AuditChange(ctx, tx, change)
	})
	return out, pg.Wrap(err, "apply %s %s", k.Name, doc.Name)
}

// Set pauses, resumes or deletes a document, with an audit entry; if it already has the state, nothing changes.
// write stores the state and sets the next due time. The error wraps ErrNotFound if it does not exist.
func (k Kind) Set(ctx context.Context, db database, name, state, actor string,
	write func(ctx context.Context, tx pgx.Tx, was *Held, out *workqueue.ControlledDocument) error,
) (out workqueue.ControlledDocument, err error) {
	verb := map[string]string{workqueue.DocumentActive: "resume", workqueue.DocumentPaused: "pause",
		workqueue.DocumentDeleted: "delete"}[state]
	err = db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		was, err := k.find(ctx, tx, name, state == workqueue.DocumentDeleted)
		if err != nil {
			return err
		}
		out = workqueue.ControlledDocument{Name: name, State: state, Version: was.Version, NextDue: was.NextDue,
			Unchanged: was.State == state}
		if k.Left != "" {
			if err := tx.QueryRow(ctx, k.Left, name).Scan(&out.Waiting, &out.Parked); err != nil {
				return err
			}
		}
		if out.Unchanged {
			return nil
		}
		if err := write(ctx, tx, &was, &out); err != nil {
			return err
		}
		change := Action{Actor: actor, Name: k.Name + "_" + verb, Subject: name,
			Before: map[string]any{"version": was.Version, "state": was.State},
			After:  map[string]any{"state": state}}
		if was.NextDue != out.NextDue {
			change.Before["next_due"], change.After["next_due"] = was.NextDue, out.NextDue
		}
		if state == workqueue.DocumentDeleted {
			change.Before["spec"], change.Before["waiting"], change.After = was.Spec, out.Waiting+out.Parked, nil
		}
		return AuditChange(ctx, tx, change)
	})
	return out, pg.Wrap(err, "%s %s %s", verb, k.Name, name)
}
