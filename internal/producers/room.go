package producers

import (
	"io"
	"sync/atomic"
)

const (
	// MaxBytes bounds what one add may bring.
	MaxBytes = 32 << 20
	// MaxHeld bounds the bytes of all adds that a node has under way.
	MaxHeld = 256 << 20
)

// room counts the bytes of adds that are under way.
type room struct{ held atomic.Int64 }

func (r *room) take(n int) bool {
	if r.held.Add(int64(n)) > MaxHeld {
		r.held.Add(-int64(n))
		return false
	}
	return true
}

func (r *room) give(n int) { r.held.Add(-int64(n)) }

// body takes room for what is read of it. Its reader gives the room back by release, once nothing of it is held.
type body struct {
	from io.Reader
	room *room
	had  int
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	if b.had+n > MaxBytes {
		return 0, &TooManyError{Bytes: true}
	}
	if n > 0 && !b.room.take(n) {
		return 0, &OverloadedError{}
	}
	b.had += n
	return n, err
}

func (b *body) release() { b.room.give(b.had) }
