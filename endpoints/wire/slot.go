package wire

import "strconv"

// AppendError writes the error of a slot.
func AppendError(b []byte, e *SlotError) []byte {
	b = append(b, `{"code":`...)
	b = AppendString(b, e.Code)
	b = append(b, `,"message":`...)
	b = AppendString(b, e.Message)
	b = append(b, `,"retry":`...)
	b = strconv.AppendBool(b, e.Retry)
	return append(b, '}')
}
