package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

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
