package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"golang.org/x/sync/semaphore"

	"github.com/tranchehq/tranche/endpoints/fanout"
)

const (
	// maxBulk bounds the bytes of bulky requests that are under way. What they name takes up to 25 times as much.
	maxBulk = 16 << 20
	// bulkPatience is how long a request waits for room before it is refused.
	bulkPatience = 2 * time.Second
	// bulkTime is how long the body of one that has room may take to come: others may be waiting for the room.
	bulkTime = time.Minute
)

// bulky says that the body of an operation has so many bytes at the most, and is in memory as a whole: there is room
// for some of them at once.
func bulky(op huma.Operation, most int64) huma.Operation {
	op.MaxBodyBytes = most
	return noted(op, metaBulk, most)
}

// bulkRoom is the room for bulky requests. Who came first has it first, so that a large one is not passed by for ever.
type bulkRoom struct{ bytes *semaphore.Weighted }

func newBulkRoom() bulkRoom { return bulkRoom{semaphore.NewWeighted(maxBulk)} }

// enter waits for room for a request whose body may have so many bytes. One that does not say how many it has needs
// room for all of them.
func (b bulkRoom) enter(r *http.Request, most int64) (leave func(), err error) {
	size := r.ContentLength
	if size < 0 || size > most {
		size = most
	}
	ctx, cancel := context.WithTimeout(r.Context(), bulkPatience)
	defer cancel()
	if b.bytes.Acquire(ctx, size) != nil {
		return nil, &fanout.Error{Code: fanout.CodeBusy,
			Message: "this server holds as many requests of this kind as it has memory for; send it again a little later"}
	}
	if body, ok := r.Body.(*timedBody); ok {
		body.until = time.Now().Add(bulkTime)
	}
	return func() { b.bytes.Release(size) }, nil
}
