package row

import "fmt"

// RecordError is returned for a row of a query or of a file without lines, or a message of a stream, that cannot be an
// item.
type RecordError struct {
	Unit   string // row, message
	Number int    // of the row, from 1; the message's sequence in its stream
	Field  string // the column or field; empty when all of it is meant
	Reason string // what is wrong, and what to do
}

func (e *RecordError) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("%s %d: %s", e.Unit, e.Number, e.Reason)
	}
	return fmt.Sprintf("%s %d, field %s: %s", e.Unit, e.Number, Quote(e.Field), e.Reason)
}
