package kernel

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"golang.org/x/sync/semaphore"

	"github.com/tranchehq/tranche/endpoints/fanout"
)

const (
	// maxBulk bounds the bytes of bulky requests that are under way. They are copied once, and what they name takes up to
	// 25 times as much.
	maxBulk = 16 << 20
	// bulkStep is how many bytes wait for room at once.
	bulkStep = 32 << 10
	// bulkPatience is how long they wait before the request is refused.
	bulkPatience = 2 * time.Second
)

// Bulky says that the body of an operation has so many bytes at the most, and is in memory as a whole: there is room
// for some of them at once.
func Bulky(op huma.Operation, most int64) huma.Operation {
	op.MaxBodyBytes = most
	return noted(op, metaBulk, most)
}

// bulkRoom is the room for the bodies of bulky requests. They take it as they come: what a request says of its length
// takes none. Who came first has it first, by steps, so that nobody waits for a large body to have all of its room.
type bulkRoom struct {
	bytes *semaphore.Weighted
}

func newBulkRoom() bulkRoom { return bulkRoom{semaphore.NewWeighted(maxBulk)} }

// Enter reads the body of a request, of up to so many bytes, as there is room for it, and puts what it read in the
// place of the body. What is wrong with that is found by whoever reads it there, as it would be without a room.
func (b bulkRoom) Enter(r *http.Request, most int64) (leave func(), err error) {
	held := &heldBody{room: b.bytes}
	end, err := held.fill(r.Context(), r.Body, int(most))
	if err != nil {
		held.leave()
		return nil, err
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(&held.bytes, end), r.Body}
	return held.leave, nil
}

// heldBody is what has come of a body. It has room for as many bytes.
type heldBody struct {
	room  *semaphore.Weighted
	bytes bytes.Buffer
	had   int64
}

// fill takes up to so many bytes. What follows them is left to read: the rest, or how it ended. The error is that
// there is no room.
func (h *heldBody) fill(ctx context.Context, from io.Reader, most int) (end io.Reader, err error) {
	step := make([]byte, bulkStep)
	for h.bytes.Len() < most {
		n, read := from.Read(step[:min(len(step), most-h.bytes.Len())])
		if err := h.take(ctx, n); err != nil {
			return nil, err
		}
		h.bytes.Write(step[:n])
		if read != nil {
			return ended{read}, nil //nolint:nilerr // whoever reads on finds it
		}
	}
	return from, nil
}

// take waits for room for so many bytes more.
func (h *heldBody) take(ctx context.Context, n int) error {
	if n == 0 { // as at the end, of which a context that ended with it tells no more
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, bulkPatience)
	defer cancel()
	if h.room.Acquire(ctx, int64(n)) != nil {
		return &fanout.Error{Code: fanout.CodeBusy,
			Message: "this server holds as many requests of this kind as it has memory for; send it again a little later"}
	}
	h.had += int64(n)
	return nil
}

func (h *heldBody) leave() { h.room.Release(h.had) }

// ended is a reader at its end, or where it broke.
type ended struct{ err error }

func (e ended) Read([]byte) (int, error) { return 0, e.err }
