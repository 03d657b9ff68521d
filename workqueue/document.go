package workqueue

import (
	"encoding/json"
	"fmt"
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
