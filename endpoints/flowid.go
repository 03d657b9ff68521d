package endpoints

import (
	"encoding/binary"
	"math"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// requestBits is how many bits the number of a request takes: there are at most maxRequests.
const requestBits = 13

// flowID identifies a suspended chunk.
type flowID uuid.UUID

// newFlowID returns the id under which a chunk is suspended before a stage. It follows from who asked and for what, so
// that a stage that is repeated repeats its requests under their old ids. Its last bits are 0: there the number of a
// request stands.
//
// A request that an operator has sent again has ids of its own: the server would drop its requests as duplicates.
func newFlowID(asker Meta, endpoint string, stage int) flowID {
	name := endpoint + ":" + strconv.Itoa(stage)
	if asker.Requeued > 0 {
		name += ":" + strconv.Itoa(asker.Requeued)
	}
	flow, _ := splitSlice(uuid.NewSHA1(asker.Slice, []byte(name)))
	return flow
}

// slice returns the slice of one request of a suspended chunk.
func (f flowID) slice(request int) uuid.UUID {
	last := binary.BigEndian.Uint16(f[14:])
	binary.BigEndian.PutUint16(f[14:], last|uint16(request)) // below maxRequests
	return uuid.UUID(f)
}

// splitSlice is the reverse of flowID.slice.
func splitSlice(slice uuid.UUID) (flow flowID, request int) {
	last := binary.BigEndian.Uint16(slice[14:])
	binary.BigEndian.PutUint16(slice[14:], last&^(1<<requestBits-1))
	return flowID(slice), int(last & (1<<requestBits - 1))
}

func (f flowID) String() string { return uuid.UUID(f).String() }

// ttlHeader writes a time to live as the server reads it: in seconds, at least one.
func ttlHeader(d time.Duration) string {
	return strconv.Itoa(max(1, int(math.Ceil(d.Seconds()))))
}
