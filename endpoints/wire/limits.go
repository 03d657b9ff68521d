package wire

import "github.com/tranchehq/tranche/bitfield"

// Defaults of Limits.
const (
	// DefaultMaxBody is also the most that RequestBuilder and a service write into one body, whatever max_payload is.
	DefaultMaxBody  = 16 << 20
	DefaultMaxSlots = bitfield.Size
	DefaultMaxDepth = 128
)

// MaxPooled bounds a buffer that is kept between messages.
const MaxPooled = 4 << 20

// Limits bound what one message may cost its reader. A zero field means its default.
type Limits struct {
	MaxBody  int // bytes of a body after decompression
	MaxSlots int // slots of a reply, items of a request
	MaxDepth int // nesting of one result or payload
}

// WithDefaults returns the limits with the defaults where nothing is set.
func (l Limits) WithDefaults() Limits {
	if l.MaxBody <= 0 {
		l.MaxBody = DefaultMaxBody
	}
	if l.MaxSlots <= 0 {
		l.MaxSlots = DefaultMaxSlots
	}
	if l.MaxDepth <= 0 {
		l.MaxDepth = DefaultMaxDepth
	}
	return l
}

// MaxConcurrency bounds Concurrency.
const MaxConcurrency = 1024
