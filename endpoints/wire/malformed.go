package wire

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// Reasons of a MalformedError. They are stable: quarantine lists and metrics carry them.
const (
	ReasonSubject  = "subject"  // the subject names no endpoint
	ReasonVersion  = "version"  // Tranche-Version is missing or of another major version
	ReasonHeader   = "header"   // a header is missing or unreadable
	ReasonEncoding = "encoding" // the Content-Encoding is unknown or the body does not fit it
	ReasonTooLarge = "too_large"
	ReasonDepth    = "depth"
	ReasonTooMany  = "too_many" // more slots or items than a slice can have
	ReasonJSON     = "json"     // the body is not valid JSON, or not valid UTF-8
	ReasonSlot     = "slot"     // a slot or an item is not of the described shape
	ReasonStack    = "stack"    // too many endpoints wait for one another
	ReasonFinal    = "final"    // Tranche-Final contradicts the body
	ReasonPiece    = "piece"    // a piece of a result is not of the described shape
)

// MalformedError is returned for a message that cannot be understood. Nothing of it may be used.
type MalformedError struct {
	Reason string // one of the Reason constants
	Detail string
	// Run and Slice are what the headers say, as far as they could be read; otherwise zero.
	Run, Slice uuid.UUID
}

func (e *MalformedError) Error() string {
	return fmt.Sprintf("malformed message (%s): %s", e.Reason, e.Detail)
}

// Malformed returns a MalformedError.
func Malformed(reason, format string, args ...any) *MalformedError {
	return &MalformedError{Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

// About adds what the headers said to a MalformedError.
func About(meta Meta, err error) error {
	if bad, ok := errors.AsType[*MalformedError](err); ok {
		bad.Run, bad.Slice = meta.Run, meta.Slice
	}
	return err
}
