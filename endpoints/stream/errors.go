package stream

import "fmt"

// ConflictError is returned when a stream of ours exists with a setting that JetStream cannot change.
type ConflictError struct {
	Stream, Setting, Have, Want string
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("stream %s has %s %q where Tranche needs %q, which cannot be changed in place: "+
		"delete the stream (a node recreates it and issues its work again) or use another NATS account",
		e.Stream, e.Setting, e.Have, e.Want)
}

// LossError is returned for a change of a stream that would lose what it holds. Nothing has been changed.
type LossError struct{ Stream, Detail string }

func (e *LossError) Error() string { return e.Detail }
