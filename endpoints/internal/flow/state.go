package flow

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/endpoints/internal/reply"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// stateVersion is the version of how a suspended chunk is written.
const stateVersion = 1

// MaxState is how large the state of a suspended chunk may be, written as JSON.
const MaxState = 16 << 20

// Suspended is a chunk between two stages. Who asked for it stands in the headers of its message: whatever becomes of
// the rest, the asker can be told.
type Suspended struct {
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
	Items    []suspendedItem    `json:"-"` // "items", the last member

	index map[int]int // of Items by ordinal
	asked []int       // how many items wait for each request
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
	Ordinal int    // "i"
	Key     string // "k"
	State   []byte // "s": JSON, or nothing
	Waits   []int  // "r": for these requests, in their order
}

// encode writes the items, of which there are many, by hand: it takes a third of the time.
func (s *Suspended) encode() ([]byte, error) {
	body, err := json.Marshal(s, json.Deterministic(true))
	if err != nil {
		return nil, err
	}
	size := len(body)
	for n := range s.Items {
		size += len(s.Items[n].Key) + len(s.Items[n].State) + itemOverhead
	}
	body = append(slices.Grow(body[:len(body)-1], size), `,"items":[`...)
	for n := range s.Items {
		if n > 0 {
			body = append(body, ',')
		}
		body = s.Items[n].append(body)
	}
	return append(body, "]}"...), nil
}

// itemOverhead is about what an item takes beside its key and its state.
const itemOverhead = 40

// append writes {"i":17,"k":"CUST-18","s":{…},"r":[0]}.
func (i *suspendedItem) append(b []byte) []byte {
	b = strconv.AppendInt(append(b, `{"i":`...), int64(i.Ordinal), 10)
	b = wire.AppendString(append(b, `,"k":`...), i.Key)
	if len(i.State) > 0 {
		b = append(append(b, `,"s":`...), i.State...)
	}
	for n, r := range i.Waits {
		if n == 0 {
			b = append(b, `,"r":[`...)
		} else {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(r), 10)
	}
	if len(i.Waits) > 0 {
		b = append(b, ']')
	}
	return append(b, '}')
}

// DecodeSuspended reads what encode wrote, and holds it to what the stages rely on: it comes from a stream. States
// alias the body.
func DecodeSuspended(body []byte, limits wire.Limits) (*Suspended, error) {
	limits = limits.WithDefaults()
	s := &Suspended{}
	if err := s.scan(body, limits.MaxSlots); err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	if err := s.check(limits); err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	return s, nil
}

// scan reads the items by itself, and has all else read together.
func (s *Suspended) scan(body []byte, maxItems int) error {
	in := wire.NewBodyReader(body, reply.HeldDepth)
	rest := []byte("{")
	items := false
	in.Open('{')
	for in.More() {
		name := in.Name()
		if string(name) == `"items"` {
			wire.Once(in, &items, "items")
			s.scanItems(in, maxItems)
			continue
		}
		if len(rest) > 1 {
			rest = append(rest, ',')
		}
		rest = append(append(append(rest, name...), ':'), in.Raw()...)
	}
	in.End()
	if in.Err != nil {
		return in.Err
	}
	return json.Unmarshal(append(rest, '}'), s)
}

func (s *Suspended) scanItems(in *wire.BodyReader, maxItems int) {
	var keys []byte
	var ends, waits []int
	in.Open('[')
	for in.More() {
		if len(s.Items) == maxItems {
			in.Fail(wire.ReasonTooMany, "more than %d items", maxItems)
			return
		}
		var item suspendedItem
		from := len(waits)
		item, keys, waits = scanSuspended(in, keys, waits)
		item.Waits = waits[from:len(waits):len(waits)]
		s.Items, ends = append(s.Items, item), append(ends, len(keys))
	}
	all, start := string(keys), 0 // one string for all: half the garbage of one each
	for n, end := range ends {
		s.Items[n].Key, start = all[start:end], end
	}
}

// scanSuspended reads one item, and appends its key and the requests that it waits for.
func scanSuspended(in *wire.BodyReader, keys []byte, waits []int) (item suspendedItem, allKeys []byte, allWaits []int) {
	var seenI, seenK, seenS, seenR bool
	in.Open('{')
	for in.More() {
		switch string(in.Name()) {
		case `"i"`:
			wire.Once(in, &seenI, "i")
			item.Ordinal = in.Ordinal()
		case `"k"`:
			wire.Once(in, &seenK, "k")
			keys = in.Text(keys)
		case `"s"`:
			wire.Once(in, &seenS, "s")
			item.State = in.Raw()
		case `"r"`:
			wire.Once(in, &seenR, "r")
			in.Open('[')
			for in.More() {
				waits = append(waits, in.Ordinal())
			}
		default:
			in.Raw()
		}
	}
	if in.Err == nil && !seenI {
		in.Fail(wire.ReasonSlot, `the item that ends at byte %d has no "i"`, in.Pos())
	}
	return item, keys, waits
}

func (s *Suspended) check(limits wire.Limits) error {
	switch {
	case s.Version != stateVersion:
		return fmt.Errorf("its version is %d; this side reads %d", s.Version, stateVersion)
	case s.Stages < 1 || s.Stages > wire.MaxStages || s.Stage < 1 || s.Stage >= s.Stages:
		return fmt.Errorf("stage %d of %d is none", s.Stage, s.Stages)
	case len(s.Requests) == 0 || len(s.Requests) > wire.MaxRequests:
		return fmt.Errorf("it waits for %d requests", len(s.Requests))
	case s.Total < 0 || s.Total > limits.MaxSlots || s.Answered < 0 || s.Answered+len(s.Items) > s.Total:
		return fmt.Errorf("%d of %d items are answered and %d are left", s.Answered, s.Total, len(s.Items))
	}
	for _, r := range s.Requests {
		if wire.ValidateName(r.Target) != nil || wire.ValidateName(r.Endpoint) != nil {
			return fmt.Errorf("target %.80q of endpoint %.80q is none", r.Target, r.Endpoint)
		}
	}
	return s.checkItems()
}

func (s *Suspended) checkItems() error {
	s.index, s.asked = make(map[int]int, len(s.Items)), make([]int, len(s.Requests))
	for n := range s.Items {
		item := &s.Items[n]
		if _, twice := s.index[item.Ordinal]; twice {
			return fmt.Errorf("ordinal %d stands twice", item.Ordinal)
		}
		s.index[item.Ordinal] = n
		for n, r := range item.Waits {
			if r >= len(s.Requests) || n > 0 && r <= item.Waits[n-1] {
				return fmt.Errorf("item %d waits for request %d of %d", item.Ordinal, r, len(s.Requests))
			}
			s.asked[r]++
		}
	}
	return nil
}

// find returns the place of an item in Items, if it waits for the request.
func (s *Suspended) find(request, ordinal int) (n int, waits bool) {
	n, known := s.index[ordinal]
	return n, known && slices.Contains(s.Items[n].Waits, request)
}

func suspendError(e *wire.SlotError) *suspendedError {
	if e == nil {
		return nil
	}
	return &suspendedError{e.Code, e.Message, e.Retry}
}

func (e *suspendedError) slotError() *wire.SlotError {
	if e == nil {
		return nil
	}
	return wire.NewSlotError(e.Code, e.Message, e.Retry)
}
