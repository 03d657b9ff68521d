package fanout

// AddRequest asks for items to be added, over NATS.
type AddRequest struct {
	Batch string `json:"batch"`
	GroupSettings
}

// AckRequest acknowledges items, over NATS. With a batch, ids and ranges are of that one only, and ranges may leave it
// out.
type AckRequest struct {
	Batch string `json:"batch,omitempty"`
	Acknowledgement
}

// BatchRequest is about one batch.
type BatchRequest struct {
	Batch string `json:"batch"`
}

// GetRequest asks for a batch, and for so many ranges of what is missing.
type GetRequest struct {
	Batch   string `json:"batch"`
	Missing int    `json:"missing,omitempty"`
}

// GroupsRequest asks for groups of a batch, from the one that follows After.
type GroupsRequest struct {
	Batch string `json:"batch"`
	After *int   `json:"after,omitempty"`
	Limit int    `json:"limit,omitempty"`
}

// MissingRequest asks for what is missing, after an item like 12:8191.
type MissingRequest struct {
	Batch string `json:"batch"`
	After string `json:"after,omitempty"`
	Limit int    `json:"limit,omitempty"`
}

// ListRequest asks for batches.
type ListRequest struct {
	Owner string `json:"owner,omitempty"`
	State string `json:"state,omitempty"`
	After string `json:"after,omitempty"`
	Limit int    `json:"limit,omitempty"`
}
