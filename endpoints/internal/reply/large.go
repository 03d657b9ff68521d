package reply

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// pieceRoom is how much room in the outbox a piece takes for each of its bytes: 4 MiB of pieces are out at once. What a
// slow server does not acknowledge in time is sent again, which makes it no faster.
const pieceRoom = 4

// largeResult is a result that goes in pieces.
type largeResult struct {
	ordinal     int
	contentType string // empty: JSON
	data        []byte
}

// large answers an item with a result that does not fit a message. Only nodes take those.
func (a *Writer) large(ordinal int, contentType string, data []byte) {
	toNode := strings.HasPrefix(a.Subject, wire.ReplyPrefix)
	switch {
	case !toNode:
		a.Fault(ordinal, wire.NewSlotError(wire.CodeResultTooLarge, fmt.Sprintf(
			"the result has %d bytes and does not fit a message of %d; only a run's step of kind endpoint takes larger ones, "+
				"not a flow or a caller: raise the NATS server's max_payload (16 MiB count), or store the result "+
				"elsewhere and reply with where it is", len(data), a.Limit), false))
	case len(data) > wire.MaxResult:
		a.Fault(ordinal, wire.NewSlotError(wire.CodeResultTooLarge, fmt.Sprintf(
			"the result has %d bytes, and %d are the most; store it elsewhere and reply with where it is", len(data),
			wire.MaxResult), false))
	case (len(data)-1)/a.pieceSize() >= wire.MaxPieces:
		a.Fault(ordinal, wire.NewSlotError(wire.CodeResultTooLarge, fmt.Sprintf(
			"the result has %d bytes, which are more than %d pieces of %d; raise the NATS server's max_payload", len(data),
			wire.MaxPieces, a.pieceSize()), false))
	case len(a.held.marks) > 0:
		a.stashLarge(&largeResult{ordinal, contentType, bytes.Clone(data)})
		a.Total++
	default:
		a.Total++
		a.shipLarge(&largeResult{ordinal, contentType, data})
	}
}

func (a *Writer) pieceSize() int { return max(min(a.Limit, wire.DefaultPiece), 1) }

// shipLarge sends the pieces of a result. It returns once all of them are on their way, or the reply is broken. The
// data may be changed afterwards: no more of it is copied at once than the outbox has room for.
func (a *Writer) shipLarge(r *largeResult) {
	size := a.pieceSize()
	whole := wire.Whole{Ordinal: r.ordinal, Pieces: (len(r.data) + size - 1) / size, Bytes: int64(len(r.data)),
		SHA256: sha256.Sum256(r.data), ContentType: r.contentType}
	if whole.ContentType == "" {
		whole.ContentType = wire.ContentTypeJSON
	}
	for n := 1; n <= whole.Pieces && a.err == nil; n++ {
		data := r.data[(n-1)*size : min(n*size, len(r.data))]
		if err := a.Out.Reserve(a.Ctx, pieceRoom*len(data)); err != nil {
			a.Broken(err)
			return
		}
		a.post(a.piece(&whole, n, bytes.Clone(data)), pieceRoom*len(data), nil)
	}
}

// piece wraps a piece of a result.
func (a *Writer) piece(whole *wire.Whole, number int, data []byte) *nats.Msg {
	msg := a.plain(data)
	msg.Header[wire.HeaderPiece] = []string{whole.Header(number)}
	msg.Header[wire.HeaderContentType] = []string{whole.ContentType}
	return msg
}

// stashLarge puts a result to what is held.
func (a *Writer) stashLarge(r *largeResult) {
	a.Flush() // what was answered before stays before it
	if a.held.over == nil {
		a.held.bodies = append(a.held.bodies, heldBody{large: r})
		a.heldMore(len(r.data))
	}
}
