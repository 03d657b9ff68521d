package workqueue

import (
	"encoding/json"
	"time"
)

// StepSpec is a step as a run starts with it.
type StepSpec struct {
	Name         string
	Endpoint     string
	Chunk        int // items of a slice at the most, 1 to 8192
	InFlight     int // slices at once over all nodes
	MaxAttempts  int
	Timeout      time.Duration
	RetryBackoff time.Duration

	InFlightAuto bool          // InFlight is an upper bound, and nodes find the limit
	ChunkAuto    bool          // Chunk is an upper bound, and nodes find the size
	ChunkBytes   int           // wanted size of a request; 0: the node's
	ChunkTime    time.Duration // what an automatic chunk may take; 0: the nodes' own idea of it
	Rate         float64       // items a second at the most; 0: no limit
	MaxBackoff   time.Duration // the longest pause between two tries; 0: 5 minutes
	RetryCodes   []string      // error codes that are tried again whatever the service says
	NeverRetry   []string      // error codes that never are

	Kind     Kind            // empty: KindEndpoint
	Needs    []int           // steps that must be done for an item before, each with a smaller number
	Inputs   []int           // of those, the ones whose parts its requests carry
	NoItem   bool            // its requests do not carry the items' payloads
	Optional bool            // what needs it goes on without it
	Barrier  bool            // nothing of it begins before its needs have ended for all items
	Config   json.RawMessage // the kind's own settings; nil: none
}
