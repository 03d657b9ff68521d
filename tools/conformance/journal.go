package conformance

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// The acknowledgements of JetStream.
const (
	ackDone    = "+ACK"
	ackBack    = "-NAK"
	ackWorking = "+WPI"
	ackRemove  = "+TERM"
)

// acknowledgement is one that the service sent, for the request with this sequence.
type acknowledgement struct {
	kind     string
	text     string // all of it
	sequence uint64
	stored   time.Time // when the stream took the request
}

// journal notes what the service sends: replies as they are published, taken by the stream or not, and
// acknowledgements. It is safe for concurrent use.
type journal struct {
	mu      sync.Mutex
	changed chan struct{}
	replies []*message
	acks    []acknowledgement
}

func newJournal() *journal { return &journal{changed: make(chan struct{})} }

// listen notes all that comes until ctx ends.
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

// until returns when done is true, or ctx's error. done is called with the journal locked, after each change.
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

// of returns the messages of a slice. Of two with one Nats-Msg-Id the stream takes the first, and so does it. The
// journal is locked.
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

// look calls f with the journal locked.
func (j *journal) look(f func() bool) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return f()
}

// settled returns the first acknowledgement of a request that lets it go. The journal is locked.
func (j *journal) settled(sequence uint64) (acknowledgement, bool) {
	for _, ack := range j.acks {
		if ack.sequence == sequence && ack.kind != ackWorking {
			return ack, true
		}
	}
	return acknowledgement{}, false
}

// count returns how many acknowledgements of a kind a request got. It locks the journal.
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

// readAcknowledgement reads one. Its subject is what a delivery has as its reply subject.
func readAcknowledgement(msg *nats.Msg) (acknowledgement, bool) {
	of, err := (&nats.Msg{Sub: msg.Sub, Reply: msg.Subject}).Metadata()
	if err != nil {
		return acknowledgement{}, false
	}
	text := string(msg.Data)
	kind, _, _ := strings.Cut(text, " ")
	if kind == "" {
		kind = ackDone // an empty one counts as such
	}
	return acknowledgement{kind: kind, text: text, sequence: of.Sequence.Stream, stored: of.Timestamp}, true
}

// message is one message of a reply. It is read as leniently as can be, so that a service that gets one thing wrong
// fails the check of that thing only; that a node could read it is a check of its own.
type message struct {
	subject string
	header  nats.Header
	data    []byte
	slots   []slot
	piece   *wire.Piece // nil: it is none
	failure *slotError
	final   int // -1 when the message does not say, or says no number
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
		m.piece, _ = wire.ParsePiece(msg.Subject, msg.Header, msg.Data) // "readable" says what is wrong with it
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

// answer is a reply put together from its messages.
type answer struct{ messages []*message }

// slots returns the first slot of each ordinal.
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

// sent returns the number of slots in all messages. A result in pieces is one.
func (a *answer) sent() int {
	n := len(a.pieces())
	for _, m := range a.messages {
		n += len(m.slots)
	}
	return n
}

// final returns the greatest Tranche-Final, or -1.
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

// String says in short what came.
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

// exactly returns an error unless there is a slot for each item of the request and for nothing else.
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
		var foreign []int
		for ordinal := range slots {
			foreign = append(foreign, ordinal)
		}
		return differs(expected, "%s; slots for ordinals that were not asked for: %s", a, ordinals(foreign))
	}
	return nil
}

// slot returns the slot of an ordinal, or why there is none.
func (a *answer) slot(ordinal int) (slot, error) {
	s, ok := a.slots()[ordinal]
	if !ok {
		return s, differs(fmt.Sprintf("a slot for ordinal %d", ordinal), "%s, none of them", a)
	}
	return s, nil
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

// pieces returns the results that came in pieces, as slots: those of which all pieces are here and are what they say.
func (a *answer) pieces() (whole []slot) {
	byResult := map[wire.Whole][][]byte{}
	for _, m := range a.messages {
		if p := m.piece; p != nil {
			if byResult[p.Whole] == nil {
				byResult[p.Whole] = make([][]byte, p.Pieces)
			}
			byResult[p.Whole][p.Number-1] = p.Data
		}
	}
	for of, parts := range byResult {
		data := slices.Concat(parts...)
		missing := slices.ContainsFunc(parts, func(part []byte) bool { return part == nil })
		if missing || int64(len(data)) != of.Bytes || sha256.Sum256(data) != of.SHA256 {
			continue
		}
		if of.ContentType == wire.ContentTypeJSON {
			whole = append(whole, slot{I: &of.Ordinal, D: data})
			continue
		}
		text := base64.StdEncoding.EncodeToString(data)
		whole = append(whole, slot{I: &of.Ordinal, B: &text, T: of.ContentType})
	}
	return whole
}

// recorder writes down what suite and service say to each other, a line of JSON for each message.
type recorder struct {
	out   io.Writer
	check atomic.Pointer[string] // that is made
	err   error                  // of the first line that could not be written, once it has ended
}

// utterance is a message in the record. A body that is no JSON stands as base64.
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

// follow records until ctx ends. It hears the requests and the service's pulls, beside what the suite listens to.
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
	case plain && printable(msg.Data):
		line.Text = string(msg.Data)
	default:
		line.Base64 = base64.StdEncoding.EncodeToString(msg.Data)
	}
	text, err := json.Marshal(line)
	if err == nil {
		_, err = r.out.Write(append(text, '\n'))
	}
	if r.err == nil {
		r.err = err
	}
}

// printable reports whether data is text of ASCII, as acknowledgements are.
func printable(data []byte) bool {
	for _, c := range data {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}
