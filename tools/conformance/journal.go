package conformance

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// JetStream's acknowledgements.
const (
	ackDone    = "+ACK"
	ackBack    = "-NAK"
	ackWorking = "+WPI"
	ackRemove  = "+TERM"
)

type acknowledgement struct {
	kind     string
	text     string // whole text
	sequence uint64
	stored   time.Time // when the stream stored the request
}

// journal records the service's replies, stored or not, and acknowledgements. It is safe for concurrent use.
type journal struct {
	mu      sync.Mutex
	changed chan struct{}
	replies []*message
	acks    []acknowledgement
}

func newJournal() *journal { return &journal{changed: make(chan struct{})} }

// listen records all messages until ctx ends.
func (j *journal) listen(ctx context.Context, from <-chan *nats.Msg) {
	for {
		select {
		case <-ctx.Done():
			return
		case msg := <-from:
			j.note(msg)
		}
	}
}

func (j *journal) note(msg *nats.Msg) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if strings.HasPrefix(msg.Subject, "$JS.ACK.") {
		if ack, ok := readAcknowledgement(msg); ok {
			j.acks = append(j.acks, ack)
		}
	} else {
		j.replies = append(j.replies, readMessage(msg))
	}
	close(j.changed)
	j.changed = make(chan struct{})
}

// until returns when done is true, or ctx's error. done is called after each change, with mu held.
func (j *journal) until(ctx context.Context, done func() bool) error {
	for {
		j.mu.Lock()
		ok, changed := done(), j.changed
		j.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// of returns a slice's messages, without repetitions of a Nats-Msg-Id, like the stream. mu must be held.
func (j *journal) of(slice string) []*message {
	var found []*message
	seen := map[string]bool{}
	for _, m := range j.replies {
		if m.header.Get(wire.HeaderSlice) != slice || m.id() != "" && seen[m.id()] {
			continue
		}
		seen[m.id()] = true
		found = append(found, m)
	}
	return found
}

// look calls f with mu held.
func (j *journal) look(f func() bool) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return f()
}

// settled returns the first final acknowledgement of a request. mu must be held.
func (j *journal) settled(sequence uint64) (acknowledgement, bool) {
	for _, ack := range j.acks {
		if ack.sequence == sequence && ack.kind != ackWorking {
			return ack, true
		}
	}
	return acknowledgement{}, false
}

func (j *journal) count(sequence uint64, kind string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := 0
	for _, ack := range j.acks {
		if ack.sequence == sequence && ack.kind == kind {
			n++
		}
	}
	return n
}

// readAcknowledgement parses an acknowledgement. Its subject is a delivery's reply subject.
func readAcknowledgement(msg *nats.Msg) (acknowledgement, bool) {
	of, err := (&nats.Msg{Sub: msg.Sub, Reply: msg.Subject}).Metadata()
	if err != nil {
		return acknowledgement{}, false
	}
	text := string(msg.Data)
	kind, _, _ := strings.Cut(text, " ")
	kind = cmp.Or(kind, ackDone) // as the server treats an empty one
	return acknowledgement{kind: kind, text: text, sequence: of.Sequence.Stream, stored: of.Timestamp}, true
}

// message is one message of a reply. It is parsed leniently, so that a service with one error fails only that check;
// readability by nodes has its own check.
type message struct {
	subject string
	header  nats.Header
	data    []byte
	slots   []slot
	piece   *wire.Piece // nil if not a piece
	failure *slotError
	final   int // -1 if missing or not a number
}

type slot struct {
	I *int            `json:"i"`
	D json.RawMessage `json:"d"`
	B *string         `json:"b"`
	T string          `json:"t"`
	E *slotError      `json:"e"`
}

type slotError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Retry   bool   `json:"retry"`
}

func (e *slotError) String() string {
	return fmt.Sprintf("error %s (%.80q, retry %t)", e.Code, e.Message, e.Retry)
}

func readMessage(msg *nats.Msg) *message {
	m := &message{subject: msg.Subject, header: msg.Header, data: msg.Data, final: -1}
	if n, err := strconv.Atoi(msg.Header.Get(wire.HeaderFinal)); err == nil {
		m.final = n
	}
	if wire.IsPiece(msg.Header) {
		m.piece, _ = wire.ParsePiece(msg.Subject, msg.Header, msg.Data) // the check "readable" reports errors
		return m
	}
	body := msg.Data
	if msg.Header.Get(wire.HeaderEncoding) == "zstd" {
		body = decompress(body)
	}
	var content struct {
		Slots []slot     `json:"slots"`
		Error *slotError `json:"error"`
	}
	if json.Unmarshal(body, &content) == nil {
		m.slots, m.failure = content.Slots, content.Error
	}
	if code := msg.Header.Get(wire.HeaderErrorCode); m.failure == nil && code != "" {
		m.failure = &slotError{Code: code, Message: msg.Header.Get(wire.HeaderError), Retry: true}
	}
	return m
}

func (m *message) id() string { return m.header.Get(wire.HeaderMsgID) }

type answer struct{ messages []*message }

func (a *answer) slots() map[int]slot {
	found := map[int]slot{}
	for _, m := range a.messages {
		for _, s := range m.slots {
			if s.I == nil {
				continue
			}
			if _, twice := found[*s.I]; !twice {
				found[*s.I] = s
			}
		}
	}
	for _, s := range a.pieces() {
		if _, twice := found[*s.I]; !twice {
			found[*s.I] = s
		}
	}
	return found
}

// sent returns the number of slots in all messages. A result in pieces counts as one.
func (a *answer) sent() int {
	n := len(a.pieces())
	for _, m := range a.messages {
		n += len(m.slots)
	}
	return n
}

// final returns the largest Tranche-Final, or -1.
func (a *answer) final() int {
	n := -1
	for _, m := range a.messages {
		n = max(n, m.final)
	}
	return n
}

func (a *answer) failure() *slotError {
	for _, m := range a.messages {
		if m.failure != nil {
			return m.failure
		}
	}
	return nil
}

// String summarizes the reply.
func (a *answer) String() string {
	if len(a.messages) == 0 {
		return "nothing"
	}
	text := fmt.Sprintf("%d messages with %d slots", len(a.messages), a.sent())
	if a.final() >= 0 {
		text += fmt.Sprintf(", Tranche-Final %d", a.final())
	} else {
		text += ", none with Tranche-Final"
	}
	if f := a.failure(); f != nil {
		text += ", failure: " + f.String()
	}
	return text
}

// exactly returns an error unless there are slots for exactly the items of the request.
func (a *answer) exactly(r *request) error {
	slots := a.slots()
	var missing []int
	for _, item := range r.items {
		if _, ok := slots[item.ordinal]; !ok {
			missing = append(missing, item.ordinal)
		}
		delete(slots, item.ordinal)
	}
	expected := fmt.Sprintf("one slot for each of the %d items, with its ordinal", len(r.items))
	switch {
	case len(missing) > 0:
		return differs(expected, "%s; no slot for ordinals %s", a, ordinals(missing))
	case len(slots) > 0:
		foreign := slices.Collect(maps.Keys(slots))
		return differs(expected, "%s; slots for ordinals that were not requested: %s", a, ordinals(foreign))
	}
	return nil
}

func (a *answer) slot(ordinal int) slot {
	s, ok := a.slots()[ordinal]
	if !ok {
		fail(fmt.Sprintf("a slot for ordinal %d", ordinal), "%s, none of them", a)
	}
	return s
}

func (s slot) String() string {
	switch {
	case s.E != nil:
		return s.E.String()
	case s.B != nil:
		return fmt.Sprintf("%q as %s", brief(*s.B), cmp.Or(s.T, "no content type"))
	default:
		return brief(string(s.D))
	}
}

func brief(text string) string {
	if len(text) > 80 {
		return fmt.Sprintf("%s… (%d bytes)", text[:60], len(text))
	}
	return text
}

func ordinals(list []int) string {
	slices.Sort(list)
	var text []string
	for _, n := range list[:min(len(list), 8)] {
		text = append(text, strconv.Itoa(n))
	}
	if len(list) > 8 {
		text = append(text, "…")
	}
	return strings.Join(text, ", ")
}

// pieces returns the results whose pieces are complete and valid, as slots.
func (a *answer) pieces() (whole []slot) {
	var open wire.Assembly
	for _, m := range a.messages {
		if m.piece == nil {
			continue
		}
		s, err := open.Add(m.piece)
		switch {
		case err != nil || s == nil: // damaged or incomplete
		case s.ContentType == "":
			whole = append(whole, slot{I: &s.Ordinal, D: s.Data})
		default:
			whole = append(whole, slot{I: &s.Ordinal, B: new(base64.StdEncoding.EncodeToString(s.Data)), T: s.ContentType})
		}
	}
	return whole
}

// recorder writes all messages between suite and service as JSON lines.
type recorder struct {
	out   io.Writer
	check atomic.Pointer[string] // the running check
	err   error                  // of the first failed write, once ended
}

// utterance is a recorded message. A body that is not JSON or text is base64.
type utterance struct {
	At      time.Time       `json:"at"`
	Check   string          `json:"check,omitempty"`
	Subject string          `json:"subject"`
	Reply   string          `json:"reply,omitempty"`
	Headers nats.Header     `json:"headers,omitempty"`
	JSON    json.RawMessage `json:"json,omitempty"`
	Text    string          `json:"text,omitempty"`
	Base64  string          `json:"base64,omitempty"`
}

// follow records until ctx ends, including requests and the service's pulls.
func (r *recorder) follow(ctx context.Context, nc *nats.Conn, endpoint string) (done <-chan struct{}, err error) {
	came := make(chan *nats.Msg, 1<<14)
	for _, subject := range []string{
		wire.WorkSubject(endpoint), fmt.Sprintf("$JS.API.CONSUMER.MSG.NEXT.%s.%s", wire.StreamWork, endpoint),
	} {
		if _, err := nc.ChanSubscribe(subject, came); err != nil {
			return nil, fmt.Errorf("listen to %s: %w", subject, err)
		}
	}
	if err := tap(nc, endpoint, came); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-ctx.Done():
				return
			case msg := <-came:
				r.note(msg)
			}
		}
	}()
	return ended, nil
}

func (r *recorder) note(msg *nats.Msg) {
	line := utterance{At: time.Now().UTC(), Subject: msg.Subject, Reply: msg.Reply, Headers: msg.Header}
	if check := r.check.Load(); check != nil {
		line.Check = *check
	}
	switch plain := msg.Header.Get(wire.HeaderEncoding) == ""; {
	case plain && json.Valid(msg.Data):
		line.JSON = msg.Data
	case plain && !slices.ContainsFunc(msg.Data, func(c byte) bool { return c < ' ' || c > '~' }):
		line.Text = string(msg.Data)
	default:
		line.Base64 = base64.StdEncoding.EncodeToString(msg.Data)
	}
	text, err := json.Marshal(line)
	if err == nil {
		_, err = r.out.Write(append(text, '\n'))
	}
	r.err = cmp.Or(r.err, err)
}
