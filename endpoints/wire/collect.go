package wire

import (
	"encoding/json"
	"fmt"
)

// Operation is one operation for a collector: what an endpoint is to do, later and together with others.
type Operation struct {
	// ID makes adding it twice harmless: within the time that the collector remembers ids, a second one is left out.
	ID string
	// Key is what the operation belongs to, like a user's id: those of one key are done in their order. A collector with
	// order_by takes it from the payload instead.
	Key string
	// Priority matters to collectors with order: priority; higher ones go first.
	Priority int
	// Payload is what the endpoint gets, as JSON: any value that encoding/json can write.
	Payload any
}

// Collected is the outcome of an add.
type Collected struct {
	Added      int `json:"added"`      // operations that wait now
	Duplicates int `json:"duplicates"` // that were left out, since their ids were added before
}

// CollectReply is the answer to operations that were sent to CollectSubject: counts once they are stored, or an error.
type CollectReply struct {
	Collected
	Error *CollectError `json:"error,omitempty"`
}

// CollectCode says what is wrong, for programs.
type CollectCode string

// The codes.
const (
	CollectUnknown     CollectCode = "no_such_collector"
	CollectInvalid     CollectCode = "bad_operation"     // the message says which, and what is wrong with it
	CollectTooLarge    CollectCode = "too_large"         // too many operations, or bytes, at once
	CollectBusy        CollectCode = "too_many_requests" // the node has too much under way
	CollectConflict    CollectCode = "conflict"          // the collector was changed again and again meanwhile
	CollectUnavailable CollectCode = "unavailable"       // no node, or none that reaches its database
	CollectInternal    CollectCode = "internal"          // the log of the node says what
)

// CollectError says why operations were not stored. None of those that were sent together was, unless the code is
// CollectUnavailable or CollectInternal: then they may have been.
type CollectError struct {
	Collector string      `json:"-"`
	Code      CollectCode `json:"code"`
	Message   string      `json:"message"`
}

func (e *CollectError) Error() string {
	return fmt.Sprintf("add to collector %s: %s", e.Collector, e.Message)
}

// Temporary reports whether the same add may succeed later.
func (e *CollectError) Temporary() bool {
	return e.Code == CollectBusy || e.Code == CollectConflict || e.Code == CollectUnavailable || e.Code == CollectInternal
}

// UnstoredError is returned for operations of which it is not known whether they were stored: no node has answered in
// time. Adding them again is harmless, with the ids that they had.
type UnstoredError struct {
	Collector string
	Err       error // of the context, and why the last try failed
}

func (e *UnstoredError) Error() string {
	return fmt.Sprintf("add to collector %s: no answer: %v; does a node serve (tranche nodes)?", e.Collector, e.Err)
}

// Unwrap returns the error of the context, and why the last try failed.
func (e *UnstoredError) Unwrap() error { return e.Err }

// wireOperation is an Operation in a message.
type wireOperation struct {
	ID       string          `json:"id,omitempty"`
	Key      string          `json:"key,omitempty"`
	Priority int             `json:"priority,omitempty"`
	Payload  json.RawMessage `json:"payload"`
}

// EncodeOperations writes each operation as a line.
func EncodeOperations(ops []Operation, newID func() string) ([][]byte, error) {
	lines := make([][]byte, len(ops))
	for i, op := range ops {
		payload, err := json.Marshal(op.Payload)
		if err != nil {
			return nil, fmt.Errorf("operation %d: its payload: %w", i+1, err)
		}
		if op.ID == "" {
			op.ID = newID()
		}
		line, err := json.Marshal(wireOperation{op.ID, op.Key, op.Priority, payload})
		if err != nil {
			return nil, fmt.Errorf("operation %d: %w", i+1, err)
		}
		lines[i] = append(line, '\n')
	}
	return lines, nil
}

// ParseCollectSubject returns the collector that a subject names. The error is a *MalformedError.
func ParseCollectSubject(subject string) (string, error) { return endpointOf(subject, collectPrefix) }
