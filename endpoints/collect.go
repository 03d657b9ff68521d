package endpoints

import (
	"encoding/json"
	"fmt"
	"net/http"
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

// Codes of a CollectError. They are those of HTTP.
const (
	CollectUnknown    = http.StatusNotFound // there is no such collector
	CollectTooLarge   = http.StatusRequestEntityTooLarge // too many operations, or bytes, at once
	CollectInvalid    = http.StatusUnprocessableEntity // the operations are wrong; the message says where
	CollectOverloaded = http.StatusTooManyRequests // the node has too much under way
	CollectAway       = http.StatusServiceUnavailable // the node cannot reach its database
	CollectFailed = http.StatusInternalServerError // something went wrong inside
)

// CollectError says why operations were not stored. None of those that were sent together was.
type CollectError struct {
	Collector string `json:"-"`
	Code      int    `json:"code"`
	Message   string `json:"message"`
}

func (e *CollectError) Error() string {
	return fmt.Sprintf("add to collector %s: %s", e.Collector, e.Message)
}

// Retry reports whether it may pass by itself.
func (e *CollectError) Retry() bool {
	return e.Code == CollectOverloaded || e.Code == CollectAway || e.Code == CollectFailed
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

// encodeOperations writes each operation as a line.
func encodeOperations(ops []Operation, newID func() string) ([][]byte, error) {
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
