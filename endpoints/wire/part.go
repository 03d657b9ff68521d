package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
)

// MaxParts is how many parts an item may have: as many as a plan may have steps.
const MaxParts = 64

// Part is what another step of the run has made of an item.
type Part struct {
	Data        []byte // JSON unless ContentType says otherwise. Not to be changed
	ContentType string // "" means JSON
}

// Parts are those of one item, in the order of the request.
type Parts []NamedPart

// NamedPart is a part, and the step that made it.
type NamedPart struct {
	Name string
	Part
}

// Find returns the part that the step of a name has made.
func (p Parts) Find(name string) (Part, bool) {
	for n := range p {
		if p[n].Name == name {
			return p[n].Part, true
		}
	}
	return Part{}, false
}

// Decode reads a part of JSON into what a pointer points to.
func (p Part) Decode(into any) error {
	goal := reflect.TypeOf(into).Elem()
	if p.ContentType != "" {
		return fmt.Errorf("it is %.80s, which does not fit %v; read it as a Binary", p.ContentType, goal)
	}
	if err := DecodePayload(p.Data, into); err != nil {
		return fmt.Errorf("%s", PayloadError(err, goal).Message)
	}
	return nil
}

// size is how many bytes a part takes in a request, at least.
func (p *NamedPart) size() int {
	if p.ContentType == "" {
		return len(p.Name) + len(p.Data)
	}
	return len(p.Name) + len(p.ContentType) + len(p.Data)/3*4
}

// appendPart writes "accounts":{"d":…}, or "logo":{"t":"image/png","b":"…"}.
func appendPart(b []byte, p *NamedPart) []byte {
	b = append(AppendString(b, p.Name), `:{`...)
	switch {
	case p.ContentType != "":
		b = appendEncoded(b, p.ContentType, p.Data)
	case len(p.Data) == 0:
		b = append(b, `"d":null`...)
	default:
		b = append(append(b, `"d":`...), p.Data...)
	}
	return append(b, '}')
}

// scanParts reads {"accounts":{"d":…},"logo":{"t":"image/png","b":"…"}}. A request has few names, and says each with
// every item: names keeps one string of each.
func scanParts(in *BodyReader, names map[string]string) Parts {
	found := Parts{}
	in.Open('{')
	for in.More() {
		name := in.shared(names)
		if _, twice := found.Find(name); twice {
			in.Fail(ReasonSlot, "the part that ends at byte %d, %.80q, stands twice", in.Pos(), name)
		}
		if len(found) == MaxParts {
			in.Fail(ReasonTooMany, "the item around byte %d has more than %d parts", in.Pos(), MaxParts)
		}
		if in.Err != nil {
			return nil
		}
		found = append(found, NamedPart{name, scanPart(in, names)})
	}
	return found
}

// scanPart reads {"d":…}, or {"t":"image/png","b":"…"}.
func scanPart(in *BodyReader, names map[string]string) (part Part) {
	var seen slotFields
	var encoded []byte
	in.Open('{')
	for in.More() {
		switch string(in.Name()) {
		case `"d"`:
			Once(in, &seen.d, "d")
			part.Data = in.value()
		case `"t"`:
			Once(in, &seen.t, "t")
			part.ContentType = in.shared(names)
		case `"b"`:
			Once(in, &seen.b, "b")
			encoded = in.Text([]byte{})
		default:
			in.value()
		}
	}
	if in.Err == nil {
		checkPart(in, &part, seen, encoded)
	}
	return part
}

// checkPart holds a part to the rule: exactly one of JSON and bytes.
func checkPart(in *BodyReader, part *Part, seen slotFields, encoded []byte) {
	switch {
	case seen.d && !seen.b && !seen.t:
	case seen.b && !seen.d:
		part.Data, part.ContentType = binaryOf(in, "the part that ends at byte", in.Pos(), encoded, part.ContentType,
			seen.t)
	default:
		in.Fail(ReasonSlot, `the part that ends at byte %d must have exactly one of "d" and "b" (with "t")`, in.Pos())
	}
}

// shared reads a string that is one of few.
func (r *BodyReader) shared(known map[string]string) string {
	raw := r.Raw()
	if r.Err != nil {
		return ""
	}
	if text, ok := known[string(raw)]; ok {
		return text
	}
	if raw[0] != '"' {
		r.unexpected(jsontext.Value(raw).Kind(), '"')
		return ""
	}
	unquoted, _ := jsontext.AppendUnquote(nil, raw) // a string that was read is valid
	text := string(unquoted)
	if len(known) < 4*MaxParts { // more than any request of ours has
		known[string(raw)] = text
	}
	return text
}

// Bounds of results that do not fit one message.
const (
	// MaxResult is how many bytes a result may have that comes in pieces.
	MaxResult = 64 << 20
	// MaxPiece is how many bytes a piece may have, however large max_payload is.
	MaxPiece = 1 << 20
	// MaxPieces is of how many pieces a result may consist.
	MaxPieces = 8192
	// DefaultPiece is how many bytes the SDK puts into a piece, where max_payload has room for them.
	DefaultPiece = 512 << 10
)

// Whole is what each piece of a result says about all of it.
type Whole struct {
	Ordinal     int
	Pieces      int
	Bytes       int64
	SHA256      [32]byte
	ContentType string // application/json of a result that is JSON
}

// Piece is a message with a part of a result that does not fit one. All pieces of a result say the same about it, so
// that they may come in any order; once the last has come, whichever that is, the item is answered.
type Piece struct {
	Meta
	Whole
	Endpoint string // from the subject
	Service  string // who answered
	Number   int    // from 1 on
	Data     []byte // aliases the message
}

// IsPiece reports whether a reply is a piece.
func IsPiece(h nats.Header) bool { return len(h[HeaderPiece]) > 0 }

// Header returns the value of HeaderPiece for a piece.
func (w *Whole) Header(number int) string {
	return strings.Join([]string{strconv.Itoa(w.Ordinal), strconv.Itoa(number), strconv.Itoa(w.Pieces),
		strconv.FormatInt(w.Bytes, 10), hex.EncodeToString(w.SHA256[:])}, " ")
}

// ParsePiece reads a piece from StreamReply. Data aliases body. The error is always a *MalformedError.
//
// It checks the shape only. Whether the item was asked for, and whether what the piece says of the whole is true, is
// for the caller to see.
func ParsePiece(subject string, h nats.Header, body []byte) (*Piece, error) {
	meta, err := ParseMeta(h)
	if err == nil {
		err = notRelayed(h)
	}
	endpoint := ""
	if err == nil {
		endpoint, err = endpointOf(subject, ReplyPrefix)
	}
	if err != nil {
		return nil, About(meta, err)
	}
	p := &Piece{Meta: meta, Endpoint: endpoint, Data: body,
		Service: cleanMessage(Cut(h.Get(HeaderService), MaxServiceName))}
	if err := p.parse(h); err != nil {
		return nil, About(meta, err)
	}
	return p, nil
}

func (p *Piece) parse(h nats.Header) error {
	value := h.Get(HeaderPiece)
	fields := strings.Split(value, " ")
	var numbers [4]int64
	ok := len(fields) == 5
	for i := 0; ok && i < len(numbers); i++ {
		n, err := strconv.ParseUint(fields[i], 10, 31)
		ok = err == nil && strconv.FormatUint(n, 10) == fields[i]
		numbers[i] = int64(n)
	}
	var sum []byte
	if ok {
		var err error
		sum, err = hex.DecodeString(fields[4])
		ok = err == nil && len(sum) == len(p.SHA256)
	}
	if !ok {
		return Malformed(ReasonPiece, "%s is %.160q; it must be an ordinal, the piece's number, how many there are, the "+
			"bytes of all and their SHA-256 in hexadecimal", HeaderPiece, value)
	}
	p.Ordinal, p.Number, p.Pieces, p.Bytes = int(numbers[0]), int(numbers[1]), int(numbers[2]), numbers[3]
	p.SHA256 = [32]byte(sum)
	return p.check(h)
}

// check holds what was read to its bounds.
func (p *Piece) check(h nats.Header) error {
	if p.ContentType = h.Get(HeaderContentType); p.ContentType == "" {
		p.ContentType = DefaultBinaryType
	}
	switch {
	case p.Pieces < 1 || p.Pieces > MaxPieces || p.Number < 1 || p.Number > p.Pieces:
		return Malformed(ReasonPiece, "piece %d of %d; there are 1 to %d, counted from 1", p.Number, p.Pieces, MaxPieces)
	case p.Bytes < 1 || p.Bytes > MaxResult:
		return Malformed(ReasonPiece, "the result has %d bytes; 1 to %d are allowed", p.Bytes, MaxResult)
	case len(p.Data) == 0 || len(p.Data) > MaxPiece:
		return Malformed(ReasonPiece, "the piece has %d bytes; 1 to %d are allowed", len(p.Data), MaxPiece)
	case !ValidContentType(p.ContentType):
		return Malformed(ReasonPiece, "content type %.80q is not one", p.ContentType)
	case h.Get(HeaderEncoding) != "":
		return Malformed(ReasonEncoding, "a piece is not compressed, and has no %s", HeaderEncoding)
	case h.Get(HeaderFinal) != "":
		return Malformed(ReasonFinal, "a piece is not the last message of a reply, and has no %s", HeaderFinal)
	}
	return nil
}

// Assembly puts results together from their pieces. It is for those who hold results whole, as tests of services do;
// nodes keep the pieces. The zero Assembly is ready for the pieces of one reply, and for one goroutine.
type Assembly struct{ open map[Whole]*partial }

type partial struct {
	pieces [][]byte
	left   int
}

// Add takes a piece, which may come again and in any order, and returns the slot that it completes, once; nil when
// there is none yet. The pieces of a result that is not what they say of it are an error.
func (a *Assembly) Add(p *Piece) (*Slot, error) {
	of := a.open[p.Whole]
	if of == nil {
		if a.open == nil {
			a.open = map[Whole]*partial{}
		}
		of = &partial{make([][]byte, p.Pieces), p.Pieces}
		a.open[p.Whole] = of
	}
	if of.left == 0 || of.pieces[p.Number-1] != nil {
		return nil, nil
	}
	of.pieces[p.Number-1] = p.Data
	if of.left--; of.left > 0 {
		return nil, nil
	}
	data := slices.Concat(of.pieces...)
	of.pieces = nil
	if int64(len(data)) != p.Bytes || sha256.Sum256(data) != p.SHA256 {
		return nil, About(p.Meta, Malformed(ReasonPiece, "the pieces of slot %d are not the %d bytes of SHA-256 %x",
			p.Ordinal, p.Bytes, p.SHA256))
	}
	return &Slot{Ordinal: p.Ordinal, Data: data, ContentType: p.ContentType}, nil
}

// Operation is one operation for a collector: what an endpoint is to do, later and together with others.
type Operation struct {
	// ID makes adding it twice harmless: within the time that the collector remembers ids, a second one is left out.
	ID string
	// Key is what the operation belongs to, like a user's id: those of one key are done in their order. A collector with
	// order_by takes it from the payload instead.
	Key string
	// Priority matters to collectors with order: priority; higher ones go first.
	Priority int
	// Payload is what the endpoint gets, as JSON: any value that encoding/json can write.
	Payload any
}

// Collected is the outcome of an add.
type Collected struct {
	Added      int `json:"added"`      // operations that wait now
	Duplicates int `json:"duplicates"` // that were left out, since their ids were added before
}

// CollectReply is the answer to operations that were sent to CollectSubject: counts once they are stored, or an error.
type CollectReply struct {
	Collected
	Error *CollectError `json:"error,omitempty"`
}

// CollectCode says what is wrong, for programs.
type CollectCode string

// The codes.
const (
	CollectUnknown     CollectCode = "no_such_collector"
	CollectInvalid     CollectCode = "bad_operation"     // the message says which, and what is wrong with it
	CollectTooLarge    CollectCode = "too_large"         // too many operations, or bytes, at once
	CollectBusy        CollectCode = "too_many_requests" // the node has too much in progress
	CollectConflict    CollectCode = "conflict"          // the collector was changed again and again meanwhile
	CollectUnavailable CollectCode = "unavailable"       // no node, or none that reaches its database
	CollectInternal    CollectCode = "internal"          // the log of the node says what
)

// CollectError says why operations were not stored. None of those that were sent together was, unless the code is
// CollectUnavailable or CollectInternal: then they may have been.
type CollectError struct {
	Collector string      `json:"-"`
	Code      CollectCode `json:"code"`
	Message   string      `json:"message"`
}

func (e *CollectError) Error() string {
	return fmt.Sprintf("add to collector %s: %s", e.Collector, e.Message)
}

// Temporary reports whether the same add may succeed later.
func (e *CollectError) Temporary() bool {
	return e.Code == CollectBusy || e.Code == CollectConflict || e.Code == CollectUnavailable || e.Code == CollectInternal
}

// UnstoredError is returned for operations of which it is not known whether they were stored: no node has answered in
// time. Adding them again is harmless, with the ids that they had.
type UnstoredError struct {
	Collector string
	Err       error // of the context, and why the last try failed
}

func (e *UnstoredError) Error() string {
	return fmt.Sprintf("add to collector %s: no answer: %v; does a node serve (tranche nodes)?", e.Collector, e.Err)
}

// Unwrap returns the error of the context, and why the last try failed.
func (e *UnstoredError) Unwrap() error { return e.Err }

// wireOperation is an Operation in a message.
type wireOperation struct {
	ID       string          `json:"id,omitempty"`
	Key      string          `json:"key,omitempty"`
	Priority int             `json:"priority,omitempty"`
	Payload  json.RawMessage `json:"payload"`
}

// EncodeOperations writes each operation as a line.
func EncodeOperations(ops []Operation, newID func() string) ([][]byte, error) {
	lines := make([][]byte, len(ops))
	for i, op := range ops {
		payload, err := json.Marshal(op.Payload)
		if err != nil {
			return nil, fmt.Errorf("operation %d: its payload: %w", i+1, err)
		}
		if op.ID == "" {
			op.ID = newID()
		}
		line, err := json.Marshal(wireOperation{op.ID, op.Key, op.Priority, payload})
		if err != nil {
			return nil, fmt.Errorf("operation %d: %w", i+1, err)
		}
		lines[i] = append(line, '\n')
	}
	return lines, nil
}

// ParseCollectSubject returns the collector that a subject names. The error is a *MalformedError.
func ParseCollectSubject(subject string) (string, error) { return endpointOf(subject, collectPrefix) }
