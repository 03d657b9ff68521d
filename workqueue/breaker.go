package workqueue

// BreakerState says whether an endpoint is asked at all.
type BreakerState string

// The states of a breaker.
const (
	BreakerClosed BreakerState = "closed"
	BreakerOpen   BreakerState = "open" // most requests failed: one item at a time is sent, to see whether it is up again
)
