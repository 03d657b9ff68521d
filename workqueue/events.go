package workqueue

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// EventKind says what happened to a run.
type EventKind string

// The kinds of event.
const (
	EventStarted   EventKind = "started"
	EventCompleted EventKind = "completed" // once per generation
	EventCancelled EventKind = "cancelled"
	EventRerun     EventKind = "rerun"
	EventReset     EventKind = "reset"     // parts of a step were taken back
	EventCorrected EventKind = "corrected" // items were given other payloads
	EventPaused    EventKind = "paused"    // the payload says why
	EventResumed   EventKind = "resumed"   // by an operator
	EventApproved  EventKind = "approved"  // the canary: all items may go
	EventSealed    EventKind = "sealed"    // an open run has all its items
	EventOverdue   EventKind = "overdue"   // an open run was not sealed in time
	// EventDeadlineAtRisk says that a run will not be done by its time, or, with at_risk false, that it will after all.
	EventDeadlineAtRisk EventKind = "deadline_at_risk"
	EventRewound        EventKind = "rewound" // the database lost recent commits: what it had confirmed of the run is lost

	// EventGap is of no run: the database lost recent commits, or another server took it over.
	EventGap EventKind = "database.rewound"
)

// Event is one thing that happened to a run. It is stored in the transaction that made it happen and published to
// JetStream afterwards, at least once, under a stable id.
type Event struct {
	ID         uuid.UUID
	Run        RunID
	Generation Generation
	Kind       EventKind
	Payload    json.RawMessage
	At         time.Time
}

// Engine is the actor of what nodes do by themselves.
const Engine = "tranche"
