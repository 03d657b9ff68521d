package workqueue

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// EventKind is what happened to a run.
type EventKind string

// The kinds of event.
const (
	EventStarted   EventKind = "started"
	EventCompleted EventKind = "completed" // once per generation
	EventCancelled EventKind = "cancelled"
	EventRerun     EventKind = "rerun"
	EventReset     EventKind = "reset"     // parts of a step were discarded
	EventCorrected EventKind = "corrected" // items got new payloads
	EventPaused    EventKind = "paused"    // the payload says why
	EventResumed   EventKind = "resumed"   // by an operator
	EventApproved  EventKind = "approved"  // the canary: all items may go
	EventSealed    EventKind = "sealed"    // an open run has all its items
	EventOverdue   EventKind = "overdue"   // an open run passed its seal deadline
	EventRewound   EventKind = "rewound"   // the database lost recent commits, among them confirmed ones of the run
	// EventDeadlineAtRisk: a run will not be done by its done_by; with at_risk false, it will after all.
	EventDeadlineAtRisk EventKind = "deadline_at_risk"

	// EventGap has no run: the database lost recent commits, or another server took over.
	EventGap EventKind = "database.rewound"
)

// Event is one event of a run. Stored in its transaction, it is published at least once, under a stable ID.
type Event struct {
	ID         uuid.UUID
	Run        RunID
	Generation Generation
	Kind       EventKind
	Payload    json.RawMessage
	At         time.Time
}

// Engine is the actor of nodes' own actions.
const Engine = "tranche"
