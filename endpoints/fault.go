package endpoints

import (
	"errors"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// ownError is an error of the SDK's making: the handler has decided nothing.
type ownError struct{ error }

func (e ownError) Unwrap() error { return e.error }

// undecided reports whether an error speaks for something that a handler did not decide by Fail or Retry.
func undecided(err error) bool {
	var own ownError
	var slot *wire.SlotError
	return errors.As(err, &own) || !errors.As(err, &slot)
}

// Fault writes the error slot of an ordinal whose handler has not decided it.
func (a *answers) Fault(ordinal int, e *wire.SlotError) {
	a.Blame(ordinal)
	a.Fail(ordinal, e)
}

// Blame notes that the handler has not decided the error of an ordinal.
func (a *answers) Blame(ordinal int) {
	if a.faults == nil {
		a.faults = map[int]bool{}
	}
	a.faults[ordinal] = true
}

func (a *answers) IsFault(ordinal int) bool {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	return a.faults[ordinal]
}
