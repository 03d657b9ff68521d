package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
)

// MaxParts bounds the parts of an item, as it does the steps of a plan.
const MaxParts = 64

// Part is another step's result for an item.
type Part struct {
	Data        []byte // JSON, or as ContentType says; do not modify
	ContentType string // "" for JSON
	// Ref replaces Data that does not fit the request: the service asks nodes for it, see PartQuery.
	Ref *PartRef
}

// PartRef identifies a part by its size and hash.
type PartRef struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"` // in hexadecimal
}

// RefTo returns a reference to data.
func RefTo(data []byte) *PartRef {
	sum := sha256.Sum256(data)
	return &PartRef{int64(len(data)), hex.EncodeToString(sum[:])}
}

// valid reports whether there can be such a part.
func (r *PartRef) valid() bool {
	sum, err := hex.DecodeString(r.SHA256)
	return err == nil && len(sum) == sha256.Size && r.Bytes > 0 && r.Bytes <= MaxResult
}

// PartQuery asks nodes for bytes of a part, over core NATS on PartSubject. The answer has bytes from From on, as many
// as the node likes, or the headers of an error: CodePartGone, or one that may pass.
type PartQuery struct {
	Slice   uuid.UUID `json:"slice"` // of the node's request: Meta.Root
	Ordinal int       `json:"i"`
	Step    string    `json:"step"` // whose part
	From    int64     `json:"from"`
	PartRef
}

// Read parses a query.
func (q *PartQuery) Read(body []byte) error {
	switch err := json.Unmarshal(body, q); {
	case err != nil:
		return fmt.Errorf("want {\"slice\":…,\"i\":…,\"step\":…,\"from\":…,\"bytes\":…,\"sha256\":…}: %w", err)
	case !q.valid() || q.From < 0 || q.From >= q.Bytes || q.Ordinal < 0 || q.Ordinal > math.MaxInt32,
		strings.Contains(q.Step, "\x00"):
		return fmt.Errorf("invalid part query: item %d, step %.80q, from %d, bytes %d, sha256 %.80q", q.Ordinal, q.Step,
			q.From, q.Bytes, q.SHA256)
	}
	return nil
}

// Parts are the parts of one item, in request order.
type Parts []NamedPart

// NamedPart is a part with the name of its step.
type NamedPart struct {
	Name string
	Part
}

// Find returns the named step's part.
func (p Parts) Find(name string) (Part, bool) {
	for n := range p {
		if p[n].Name == name {
			return p[n].Part, true
		}
	}
	return Part{}, false
}

// Decode decodes a JSON part into a pointer.
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

// size returns the minimum bytes of a part in a request.
func (p *NamedPart) size() int {
	switch {
	case p.Ref != nil:
		return len(p.Name) + len(p.ContentType) + refSize
	case p.ContentType == "":
		return len(p.Name) + len(p.Data)
	}
	return len(p.Name) + len(p.ContentType) + len(p.Data)/3*4
}

// refSize is about what a reference takes in a request.
const refSize = 120

// appendPart appends "accounts":{"d":…}, "logo":{"t":"image/png","b":"…"} or "logo":{"t":"image/png","r":{…}}.
func appendPart(b []byte, p *NamedPart) []byte {
	b = append(AppendString(b, p.Name), `:{`...)
	switch {
	case p.Ref != nil:
		if p.ContentType != "" {
			b = append(AppendString(append(b, `"t":`...), p.ContentType), ',')
		}
		b = fmt.Appendf(b, `"r":{"bytes":%d,"sha256":%q}`, p.Ref.Bytes, p.Ref.SHA256)
	case p.ContentType != "":
		b = appendEncoded(b, p.ContentType, p.Data)
	case len(p.Data) == 0:
		b = append(b, `"d":null`...)
	default:
		b = append(append(b, `"d":`...), p.Data...)
	}
	return append(b, '}')
}

// scanParts parses {"accounts":{"d":…},"logo":{"t":"image/png","b":"…"}}. names interns the names.
func scanParts(in *BodyReader, names map[string]string) Parts {
	found := Parts{}
	in.Open('{')
	for in.More() {
		name := in.shared(names)
		if _, twice := found.Find(name); twice {
			in.Fail(ReasonSlot, "the part that ends at byte %d, %.80q, appears twice", in.Pos(), name)
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

// scanPart parses {"d":…}, {"t":"image/png","b":"…"} or {"t":"image/png","r":{…}}.
func scanPart(in *BodyReader, names map[string]string) (part Part) {
	var seen slotFields
	var encoded, ref []byte
	in.Open('{')
	for in.More() {
		switch string(in.Name()) {
		case `"d"`:
			Once(in, &seen.d, "d")
			part.Data = in.value()
		case `"r"`:
			Once(in, &seen.r, "r")
			ref = in.value()
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
		checkPart(in, &part, seen, encoded, ref)
	}
	return part
}

// checkPart checks that a part has either JSON, bytes or a reference.
func checkPart(in *BodyReader, part *Part, seen slotFields, encoded, ref []byte) {
	members := 0
	for _, given := range [...]bool{seen.d, seen.b, seen.r} {
		if given {
			members++
		}
	}
	switch {
	case members != 1, seen.d && seen.t:
		in.Fail(ReasonSlot, `the part that ends at byte %d must have exactly one of "d", "b" and "r" (with "t")`, in.Pos())
	case seen.b:
		part.Data, part.ContentType = binaryOf(in, "the part that ends at byte", in.Pos(), encoded, part.ContentType,
			seen.t)
	case seen.r:
		part.Ref, part.ContentType = &PartRef{}, ResultType(part.ContentType)
		err := json.Unmarshal(ref, part.Ref)
		if err != nil || !part.Ref.valid() || part.ContentType != "" && !ValidContentType(part.ContentType) {
			in.Fail(ReasonSlot, `the reference that ends at byte %d must have "bytes" and "sha256" of a part`, in.Pos())
		}
	}
}

// shared reads and interns a string.
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
	unquoted, _ := jsontext.AppendUnquote(nil, raw) // a parsed string is valid
	text := string(unquoted)
	if len(known) < 4*MaxParts { // above any request of Tranche
		known[string(raw)] = text
	}
	return text
}

// Limits of results in pieces.
const (
	// MaxResult bounds the bytes of a result.
	MaxResult = 64 << 20
	// MaxPiece bounds the bytes of a piece, regardless of max_payload.
	MaxPiece = 1 << 20
	// MaxPieces bounds the pieces of a result.
	MaxPieces = 8192
	// DefaultPiece is the size of the SDK's pieces, if max_payload allows.
	DefaultPiece = 512 << 10
)

// Whole describes the complete result, identically in each piece.
type Whole struct {
	Ordinal     int
	Pieces      int
	Bytes       int64
	SHA256      [32]byte
	ContentType string // "" for JSON
}

// Piece is a message with part of a large result. Pieces arrive in any order; the last one completes the item.
type Piece struct {
	Meta
	Whole
	Endpoint string // from the subject
	Service  string // that answered
	Number   int    // from 1
	Data     []byte // aliases the message
}

// IsPiece reports whether a reply's headers are a piece's.
func IsPiece(h nats.Header) bool { return len(h[HeaderPiece]) > 0 }

// Header returns the HeaderPiece of a piece.
func (w *Whole) Header(number int) string {
	return strings.Join([]string{strconv.Itoa(w.Ordinal), strconv.Itoa(number), strconv.Itoa(w.Pieces),
		strconv.FormatInt(w.Bytes, 10), hex.EncodeToString(w.SHA256[:])}, " ")
}

// ParsePiece parses a piece from StreamReply. Data aliases body. The error is always a *MalformedError. Callers must
// check that the item was requested and that the pieces match the Whole.
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

func (p *Piece) check(h nats.Header) error {
	if p.ContentType = h.Get(HeaderContentType); p.ContentType == "" {
		p.ContentType = DefaultBinaryType
	}
	said := p.ContentType
	p.ContentType = ResultType(said)
	switch {
	case p.Pieces < 1 || p.Pieces > MaxPieces || p.Number < 1 || p.Number > p.Pieces:
		return Malformed(ReasonPiece, "piece %d of %d; there are 1 to %d, counted from 1", p.Number, p.Pieces, MaxPieces)
	case p.Bytes < 1 || p.Bytes > MaxResult:
		return Malformed(ReasonPiece, "the result has %d bytes; 1 to %d are allowed", p.Bytes, MaxResult)
	case len(p.Data) == 0 || len(p.Data) > MaxPiece:
		return Malformed(ReasonPiece, "the piece has %d bytes; 1 to %d are allowed", len(p.Data), MaxPiece)
	case !ValidContentType(said):
		return Malformed(ReasonPiece, "content type %.80q is not one", said)
	case h.Get(HeaderEncoding) != "":
		return Malformed(ReasonEncoding, "a piece is not compressed, and has no %s", HeaderEncoding)
	case h.Get(HeaderFinal) != "":
		return Malformed(ReasonFinal, "a piece is not the last message of a reply, and has no %s", HeaderFinal)
	}
	return nil
}

// Assembly joins the pieces of results in memory, for example in tests; nodes store pieces instead. The zero value is
// ready for one reply. It is not safe for concurrent use.
type Assembly struct{ open map[Whole]*partial }

type partial struct {
	pieces [][]byte
	left   int
}

// Add takes a piece, in any order and possibly repeated, and returns the slot that it completes, or nil. It returns
// an error if the pieces do not match their Whole.
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

// Operation is an item for a collector, which an endpoint processes later in a batch.
type Operation struct {
	// ID makes adding idempotent: the collector drops repeated IDs for as long as it remembers them.
	ID string
	// Key groups operations, for example by user: those of one key are processed in order. A collector with order_by
	// takes the key from the payload instead.
	Key string
	// Priority is used by collectors with order: priority; higher goes first.
	Priority int
	// Payload is the endpoint's input: any value that encoding/json can write.
	Payload any
}

// Collected is the result of adding operations.
type Collected struct {
	Added      int `json:"added"`      // operations stored
	Duplicates int `json:"duplicates"` // dropped: their IDs were added before
}

// CollectReply is the answer to a message on CollectSubject: counts once stored, or an error.
type CollectReply struct {
	Collected
	Error *CollectError `json:"error,omitempty"`
}

// CollectCode is the code of a CollectError.
type CollectCode string

// Codes of a CollectError.
const (
	CollectUnknown     CollectCode = "no_such_collector"
	CollectInvalid     CollectCode = "bad_operation"     // the message says which, and why
	CollectTooLarge    CollectCode = "too_large"         // too many operations or bytes in one message
	CollectBusy        CollectCode = "too_many_requests" // the node has too much in progress
	CollectConflict    CollectCode = "conflict"          // the collector kept being changed
	CollectUnavailable CollectCode = "unavailable"       // no node, or none with its database
	CollectInternal    CollectCode = "internal"          // see the node's log
)

// CollectError is why operations were not stored: none of the message, except with CollectUnavailable and
// CollectInternal, where they may have been.
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

// UnstoredError means that no node answered, so operations may or may not be stored. Adding them again under the same
// IDs is harmless.
type UnstoredError struct {
	Collector string
	Err       error // of the context and the last attempt
}

func (e *UnstoredError) Error() string {
	return fmt.Sprintf("add to collector %s: no answer: %v; does a node serve (tranche nodes)?", e.Collector, e.Err)
}

func (e *UnstoredError) Unwrap() error { return e.Err }

type wireOperation struct {
	ID       string          `json:"id,omitempty"`
	Key      string          `json:"key,omitempty"`
	Priority int             `json:"priority,omitempty"`
	Payload  json.RawMessage `json:"payload"`
}

// EncodeOperations encodes each operation as a line. newID supplies missing IDs.
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

// ParseCollectSubject returns the collector named by a subject. The error is a *MalformedError.
func ParseCollectSubject(subject string) (string, error) { return endpointOf(subject, collectPrefix) }
