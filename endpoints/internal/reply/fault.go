package reply

import (
	"errors"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// OwnError is an error of the SDK's making: the handler has decided nothing.
type OwnError struct{ Err error }

func (e OwnError) Error() string { return e.Err.Error() }

func (e OwnError) Unwrap() error { return e.Err }

// Undecided reports whether an error speaks for something that a handler did not decide by Fail or Retry.
func Undecided(err error) bool {
	var own OwnError
	var slot *wire.SlotError
	return errors.As(err, &own) || !errors.As(err, &slot)
}

// Fault writes the error slot of an ordinal whose handler has not decided it.
func (a *Writer) Fault(ordinal int, e *wire.SlotError) {
	a.Blame(ordinal)
	a.Fail(ordinal, e)
}

// Blame notes that the handler has not decided the error of an ordinal.
func (a *Writer) Blame(ordinal int) {
	if a.faults == nil {
		a.faults = map[int]bool{}
	}
	a.faults[ordinal] = true
}

// IsFault reports whether an item was blamed.
func (a *Writer) IsFault(ordinal int) bool {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	return a.faults[ordinal]
}
