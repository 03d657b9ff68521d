package wire

import (
	"encoding/binary"
	"math"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// requestBits is how many bits the number of a request takes: there are at most maxRequests.
const requestBits = 13

// FlowID identifies a suspended chunk.
type FlowID uuid.UUID

// NewFlowID returns the id under which a chunk is suspended before a stage. It follows from who asked and for what, so
// that a stage that is repeated repeats its requests under their old ids. Its last bits are 0: there the number of a
// request stands.
//
// A request that an operator has sent again has ids of its own: the server would drop its requests as duplicates.
func NewFlowID(asker Meta, endpoint string, stage int) FlowID {
	name := endpoint + ":" + strconv.Itoa(stage)
	if asker.Requeued > 0 {
		name += ":" + strconv.Itoa(asker.Requeued)
	}
	flow, _ := SplitSlice(uuid.NewSHA1(asker.Slice, []byte(name)))
	return flow
}

// Slice returns the slice of one request of a suspended chunk.
func (f FlowID) Slice(request int) uuid.UUID {
	last := binary.BigEndian.Uint16(f[14:])
	binary.BigEndian.PutUint16(f[14:], last|uint16(request)) // below maxRequests
	return uuid.UUID(f)
}

// SplitSlice is the reverse of flowID.slice.
func SplitSlice(slice uuid.UUID) (flow FlowID, request int) {
	last := binary.BigEndian.Uint16(slice[14:])
	binary.BigEndian.PutUint16(slice[14:], last&^(1<<requestBits-1))
	return FlowID(slice), int(last & (1<<requestBits - 1))
}

func (f FlowID) String() string { return uuid.UUID(f).String() }

// TTLHeader writes a time to live as the server reads it: in seconds, at least one.
func TTLHeader(d time.Duration) string {
	return strconv.Itoa(max(1, int(math.Ceil(d.Seconds()))))
}
