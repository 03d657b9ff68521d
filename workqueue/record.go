package workqueue

// SlotError is an error in the place of a result.
type SlotError struct {
	Code    string // a short token, for grouping
	Message string
	Retry   bool // the same request may succeed later
}
