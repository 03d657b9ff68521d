package flow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

const stateVersion = 1

// MaxState bounds the state of a suspended chunk, as JSON.
const MaxState = 16 << 20

// Suspended is a chunk between two stages. Headers name the requester, so it gets an answer despite a bad body.
type Suspended struct {
	Version  int    `json:"version"`
	Revision string `json:"revision,omitempty"`
	Stages   int    `json:"stages"`
	// Stage is the next stage.
	Stage  int               `json:"stage"`
	Params map[string]string `json:"params,omitempty"`
	// Total is the number of items in the request, Answered how many of them are answered.
	Total    int `json:"total"`
	Answered int `json:"answered"`
	// Failure applies to items dropped in earlier stages.
	Failure  *suspendedError    `json:"failure,omitempty"`
	Requests []suspendedRequest `json:"requests"`
	Shared   jsontext.Value     `json:"shared,omitzero"`
	Items    []suspendedItem    `json:"-"` // "items", the last member

	index map[int]int // ordinal to index in Items
	asked []int       // number of items waiting for each request
}

type suspendedError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Retry   bool   `json:"retry"`
}

type suspendedRequest struct {
	Target   string `json:"target"`
	Endpoint string `json:"endpoint"`
	Keep     bool   `json:"keep,omitempty"`
}

type suspendedItem struct {
	Ordinal int    // "i"
	Key     string // "k"
	State   []byte // "s": JSON, or empty
	Waits   []int  // "r": indexes of its requests, ascending
}

// encode writes the items by hand, in a third of the time.
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

// itemOverhead approximates the bytes of an item besides key and state.
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

// DecodeSuspended parses and checks the output of encode; streams are untrusted. States alias body.
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

// scan parses the items itself and passes the rest to the JSON decoder.
func (s *Suspended) scan(body []byte, maxItems int) error {
	in := wire.NewBodyReader(body, serve.HeldDepth)
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
	all, start := string(keys), 0 // one string for all keys halves the garbage
	for n, end := range ends {
		s.Items[n].Key, start = all[start:end], end
	}
}

// scanSuspended parses one item and appends its key and its requests.
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
			return fmt.Errorf("ordinal %d appears twice", item.Ordinal)
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

// find returns the index of an item in Items, if it waits for the request.
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

// Parts of a suspended chunk; those of its state are named by number.
const (
	PartHead = "head" // which replies have arrived; see gatherHead
)

const (
	// stateReserve is left for headers in each part.
	stateReserve = 1 << 10
	// doneTTL is the lifetime in seconds of the mark that a chunk has moved on.
	doneTTL = "1"
	// maxParts bounds the parts that a reader accepts.
	maxParts = 1 << 14
)

var (
	errNoState     = errors.New("the chunk is not suspended, or no longer")
	errOtherWriter = errors.New("the message was changed by another writer")
)

// Store keeps suspended chunks in StreamFlow as messages found by subject. It only needs to publish and get there.
type Store struct {
	NC       *nats.Conn
	out      *serve.Outbox
	endpoint string
	TTL      string
}

func (s *Store) subject(id wire.FlowID, part string) string {
	return wire.FlowPrefix + s.endpoint + "." + id.String() + "." + part
}

// publish publishes msg within the outbox's limits and waits for the acknowledgement.
func (s *Store) publish(ctx context.Context, msg *nats.Msg) error {
	if err := s.out.Reserve(ctx, len(msg.Data)); err != nil {
		return err
	}
	defer s.out.Release(len(msg.Data))
	return s.out.Publish(ctx, msg)
}

// write stores a state in as many messages as needed. The first part is stored last, so a reader that finds it finds
// the rest. There is no Nats-Msg-Id: a repeated stage rewrites its whole state, so that all parts are of one write.
func (s *Store) write(ctx context.Context, id wire.FlowID, header nats.Header, body []byte) error {
	header[wire.HeaderTTL] = []string{s.TTL}
	header[wire.HeaderFlowWrite] = []string{nuid.Next()}
	room := min(int(s.NC.MaxPayload())-wire.HeaderSize(header)-stateReserve, wire.DefaultMaxBody)
	parts := max(1, (len(body)+room-1)/room)
	header[wire.HeaderFlowParts] = []string{strconv.Itoa(parts)}
	for n := parts - 1; n >= 0; n-- {
		part := &nats.Msg{Subject: s.subject(id, strconv.Itoa(n)), Header: maps.Clone(header),
			Data: body[n*room : min((n+1)*room, len(body))]}
		if err := s.publish(ctx, part); err != nil {
			for n++; n < parts; n++ {
				s.remove(id, strconv.Itoa(n)) // free their space
			}
			return err
		}
	}
	return nil
}

type stored struct {
	header nats.Header
	body   []byte
	parts  int
}

// lag are the pauses for retrying a read of a message that must exist: the replica may be behind.
//
//nolint:gochecknoglobals // a constant
var lag = [...]time.Duration{5 * time.Millisecond, 20 * time.Millisecond, 75 * time.Millisecond}

// read assembles a state. It returns errNoState if the state is missing, errTorn if it is incomplete.
func (s *Store) read(ctx context.Context, id wire.FlowID) (*stored, error) {
	for attempt := 0; ; attempt++ {
		found, err := s.tryRead(ctx, id)
		if !mayAppear(err) || attempt == len(lag) {
			return found, err
		}
		if err := backoff.Sleep(ctx, lag[attempt]); err != nil {
			return nil, err
		}
	}
}

func (s *Store) tryRead(ctx context.Context, id wire.FlowID) (*stored, error) {
	first, _, err := s.get(ctx, s.subject(id, "0"))
	if err != nil {
		return nil, err
	}
	found := &stored{header: first.Header, body: first.Data}
	found.parts, err = strconv.Atoi(first.Header.Get(wire.HeaderFlowParts))
	if err != nil || found.parts < 1 || found.parts > maxParts {
		return nil, fmt.Errorf("state of %s: %s is %.40q", id, wire.HeaderFlowParts, first.Header.Get(wire.HeaderFlowParts))
	}
	for n := 1; n < found.parts; n++ {
		part, _, err := s.get(ctx, s.subject(id, strconv.Itoa(n)))
		if err != nil {
			return nil, torn(err)
		}
		if part.Header.Get(wire.HeaderFlowWrite) != first.Header.Get(wire.HeaderFlowWrite) {
			return nil, fmt.Errorf("part %d of the state of %s is of another writing: %w", n, id, errTorn)
		}
		if n == 1 {
			found.body = bytes.Clone(found.body)
		}
		if found.body = append(found.body, part.Data...); len(found.body) > MaxState {
			return nil, fmt.Errorf("state of %s: it has over %d bytes", id, MaxState)
		}
	}
	return found, nil
}

// errDone is errNoState from an explicit mark.
var errDone = fmt.Errorf("%w: it has continued", errNoState)

// errTorn means that a part is missing because the state is being rewritten, perhaps after a crash, or the replica is
// behind. The chunk still waits for the reply.
var errTorn = errors.New("a part of the chunk is missing")

// torn converts the error of reading a part of a chunk that exists.
func torn(err error) error {
	if errors.Is(err, errNoState) && !errors.Is(err, errDone) {
		return fmt.Errorf("%w: %v", errTorn, err) //nolint:errorlint // an errNoState would say that no one waits
	}
	return err
}

// mayAppear reports whether a later read may succeed.
func mayAppear(err error) bool {
	return errors.Is(err, errTorn) || errors.Is(err, errNoState) && !errors.Is(err, errDone)
}

// get returns a subject's last message and its sequence, from any replica, with permission for that subject only.
func (s *Store) get(ctx context.Context, subject string) (msg *nats.Msg, sequence uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, stream.AckTimeout)
	defer cancel()
	api := "$JS.API.DIRECT.GET." + wire.StreamFlow + "." + subject
	err = stream.During(ctx, s.NC, func(ctx context.Context) (err error) {
		msg, err = s.NC.RequestWithContext(ctx, api, nil)
		return err
	}, api)
	if err != nil {
		return nil, 0, fmt.Errorf("get %s: %w", subject, err)
	}
	switch status := msg.Header.Get("Status"); {
	case status == "404":
		return nil, 0, fmt.Errorf("get %s: %w", subject, errNoState)
	case status != "":
		return nil, 0, fmt.Errorf("get %s: %s %.100s", subject, status, msg.Header.Get("Description"))
	case msg.Header.Get(wire.HeaderFlowDone) != "":
		return nil, 0, fmt.Errorf("get %s: %w", subject, errDone)
	}
	sequence, err = strconv.ParseUint(msg.Header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return nil, 0, fmt.Errorf("get %s: %s: %w", subject, jetstream.SequenceHeader, err)
	}
	return msg, sequence, nil
}

// replace stores a message if the subject's last sequence is as given (0: none exists), else returns errOtherWriter.
func (s *Store) replace(ctx context.Context, subject string, sequence uint64, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, stream.AckTimeout)
	defer cancel()
	msg := &nats.Msg{Subject: subject, Header: nats.Header{wire.HeaderTTL: {s.TTL}}, Data: body}
	err := stream.During(ctx, s.NC, func(ctx context.Context) error {
		_, err := s.out.JS.PublishMsg(ctx, msg, jetstream.WithExpectLastSequencePerSubject(sequence),
			jetstream.WithRetryAttempts(0))
		return err
	}, subject)
	var api *jetstream.APIError
	if errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant) {
		return errOtherWriter
	}
	if err != nil {
		return fmt.Errorf("replace %s: %w", subject, err)
	}
	return nil
}

// remove marks parts for deletion without waiting. What it misses expires.
func (s *Store) remove(id wire.FlowID, parts ...string) {
	for _, part := range parts {
		_ = s.NC.PublishMsg(&nats.Msg{Subject: s.subject(id, part), Header: nats.Header{
			wire.HeaderTTL: {doneTTL}, wire.HeaderFlowDone: {"1"}}})
	}
}
