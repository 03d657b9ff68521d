package endpoints

import "strconv"

func appendError(b []byte, e *SlotError) []byte {
	b = append(b, `{"code":`...)
	b = appendString(b, e.Code)
	b = append(b, `,"message":`...)
	b = appendString(b, e.Message)
	b = append(b, `,"retry":`...)
	b = strconv.AppendBool(b, e.Retry)
	return append(b, '}')
}
