package endpoints

import (
	"fmt"
	"math"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// stateVersion is the version of how a suspended chunk is written.
const stateVersion = 1

// MaxState is how large the state of a suspended chunk may be, written as JSON.
const MaxState = 16 << 20

// suspended is a chunk between two stages. Who asked for it stands in the headers of its message: whatever becomes of
// the rest, the asker can be told.
type suspended struct {
	Version  int    `json:"version"`
	Revision string `json:"revision,omitempty"`
	Stages   int    `json:"stages"`
	// Stage is the one that comes next.
	Stage  int               `json:"stage"`
	Params map[string]string `json:"params,omitempty"`
	// Total is how many items the request had, Answered how many of them have been answered.
	Total    int `json:"total"`
	Answered int `json:"answered"`
	// Failure speaks for items that were given up in a stage before.
	Failure  *suspendedError    `json:"failure,omitempty"`
	Requests []suspendedRequest `json:"requests"`
	Shared   jsontext.Value     `json:"shared,omitzero"`
	Items    []suspendedItem    `json:"items"`
}

type suspendedError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Retry   bool   `json:"retry"`
}

// suspendedRequest is one request that is waited for.
type suspendedRequest struct {
	Target   string `json:"target"`
	Endpoint string `json:"endpoint"`
	Keep     bool   `json:"keep,omitempty"`
}

// suspendedItem is an item that goes on to the next stage.
type suspendedItem struct {
	Ordinal int            `json:"i"`
	Key     string         `json:"k"`
	State   jsontext.Value `json:"s,omitzero"`
	Waits   []int          `json:"r,omitempty"` // for these requests
}

func (s *suspended) encode() ([]byte, error) { return json.Marshal(s, json.Deterministic(true)) }

// decodeSuspended reads what encode wrote, and holds it to what the stages rely on: it comes from a stream.
func decodeSuspended(body []byte, limits Limits) (*suspended, error) {
	limits = limits.withDefaults()
	s := &suspended{}
	if err := json.Unmarshal(body, s); err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	if err := s.check(limits); err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	return s, nil
}

func (s *suspended) check(limits Limits) error {
	switch {
	case s.Version != stateVersion:
		return fmt.Errorf("its version is %d; this side reads %d", s.Version, stateVersion)
	case s.Stages < 1 || s.Stages > maxStages || s.Stage < 1 || s.Stage >= s.Stages:
		return fmt.Errorf("stage %d of %d is none", s.Stage, s.Stages)
	case len(s.Requests) == 0 || len(s.Requests) > maxRequests:
		return fmt.Errorf("it waits for %d requests", len(s.Requests))
	case s.Total < 0 || s.Total > limits.MaxSlots || s.Answered < 0 || s.Answered+len(s.Items) > s.Total:
		return fmt.Errorf("%d of %d items are answered and %d are left", s.Answered, s.Total, len(s.Items))
	}
	for _, r := range s.Requests {
		if ValidateName(r.Target) != nil || ValidateName(r.Endpoint) != nil {
			return fmt.Errorf("target %.80q of endpoint %.80q is none", r.Target, r.Endpoint)
		}
	}
	return s.checkItems()
}

func (s *suspended) checkItems() error {
	seen := make(map[int]bool, len(s.Items))
	for _, item := range s.Items {
		if item.Ordinal < 0 || item.Ordinal > math.MaxInt32 || seen[item.Ordinal] {
			return fmt.Errorf("ordinal %d is none, or stands twice", item.Ordinal)
		}
		seen[item.Ordinal] = true
		for n, r := range item.Waits {
			if r < 0 || r >= len(s.Requests) || n > 0 && r <= item.Waits[n-1] {
				return fmt.Errorf("item %d waits for request %d of %d", item.Ordinal, r, len(s.Requests))
			}
		}
	}
	return nil
}

// waiting returns the ordinals that wait for each request, with their places in Items.
func (s *suspended) waiting() []map[int]int {
	sets := make([]map[int]int, len(s.Requests))
	for r := range sets {
		sets[r] = map[int]int{}
	}
	for n := range s.Items {
		for _, r := range s.Items[n].Waits {
			sets[r][s.Items[n].Ordinal] = n
		}
	}
	return sets
}

func suspendError(e *SlotError) *suspendedError {
	if e == nil {
		return nil
	}
	return &suspendedError{e.Code, e.Message, e.Retry}
}

func (e *suspendedError) slotError() *SlotError {
	if e == nil {
		return nil
	}
	return newSlotError(e.Code, e.Message, e.Retry)
}
