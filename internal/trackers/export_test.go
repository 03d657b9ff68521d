package trackers

import (
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
)

// Span is what a range means.
type Span struct{ First, Last, Lo, Hi int }

// ParseRange is parseRange for a call about one batch.
func ParseRange(text string) (Span, error) {
	s, err := parseRange(text, &uuid.UUID{})
	return Span{s.first, s.last, s.lo, s.hi}, err
}

// Sign is sign with a secret as it is written.
func Sign(secret, id string, at time.Time, body []byte) (timestamp, signature string, err error) {
	key, err := signingKey(secret)
	if err != nil {
		return "", "", err
	}
	timestamp, signature = sign(key, id, at, body)
	return timestamp, signature, nil
}

// Rooms says which of requests of such sizes are taken while none of them ends.
func Rooms(sizes ...int) (taken []bool) {
	l := &Listener{room: make(chan struct{}, maxAtWork)}
	for _, size := range sizes {
		taken = append(taken, l.enter(&nats.Msg{Data: make([]byte, size)}))
	}
	return taken
}

// MaxHeld is maxHeld.
const MaxHeld = maxHeld
