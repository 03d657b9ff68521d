package workqueue

// Sent is a slice whose request JetStream has acknowledged.
type Sent struct {
	ID        SliceID
	StreamSeq int64
	PipeEpoch int64
}
