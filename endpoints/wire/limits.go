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

// How often a request is delivered without being answered.
const (
	// DefaultDeliveries is after how many deliveries a request is answered with CodeDeliveries instead of being run:
	// something in it kills its services, and in smaller pieces the node can find out what. JetStream counts every
	// delivery alike, those too that a service handed back because it was stopping, so the limit is over what a
	// deployment of many instances takes.
	DefaultDeliveries = 12
	// SuspectDeliveries is the same for a request that is a piece of one given up so.
	SuspectDeliveries = 3
	// MaxDeliver is after how many deliveries the server delivers a request no more, whoever its services are. A node
	// then removes it.
	MaxDeliver = 20
)
