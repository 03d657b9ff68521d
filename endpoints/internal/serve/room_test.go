package serve

import (
	"bytes"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// parcel is a message of which only the size matters.
type parcel struct {
	jetstream.Msg
	header nats.Header
	data   []byte
}

func (p parcel) Data() []byte         { return p.data }
func (p parcel) Headers() nats.Header { return p.header }

func TestRoomBoundsWhatIsAhead(t *testing.T) {
	t.Parallel()
	const slots, size = 16, 1 << 20
	r := NewRoom(NewSlots(slots, 0), false)
	held := 0
	for ; held < 10*slots; held++ {
		n, bytes := r.Want()
		if n <= 0 {
			break
		}
		if held < slots && bytes != AheadBytes {
			t.Fatalf("%d bytes may be fetched while slots are free", bytes)
		}
		r.hold(RequestID{Sequence: uint64(held)}, Delivery{msg: parcel{}, size: size})
	}
	testenv.Same(t, held, slots+AheadBytes/size, "requests of 1 MiB are held")
	for n := range held {
		r.drop(RequestID{Sequence: uint64(n)}, 10, 2*quick)
	}
	if n, _ := r.Want(); n != slots || r.Bytes != 0 {
		t.Errorf("a slow service wants %d, and %d bytes are left", n, r.Bytes)
	}
}

func TestRoomCountsBytesOnce(t *testing.T) {
	t.Parallel()
	r := NewRoom(NewSlots(1, 0), false)
	id := RequestID{Sequence: 1}
	if !r.hold(id, Delivery{size: 10}) || r.hold(id, Delivery{size: 30}) {
		t.Error("a second delivery is not known for one")
	}
	r.drop(id, 1, time.Millisecond)
	testenv.Same(t, r.Bytes, 0, "bytes are left")
}

func TestSizeIsThatOfWhatComesOut(t *testing.T) {
	t.Parallel()
	plain := bytes.Repeat([]byte("x"), 1<<20)
	small := wire.Compress(plain)
	zstd := nats.Header{wire.HeaderEncoding: {wire.EncodingZstd}}
	for name, tc := range map[string]struct {
		msg  parcel
		want int
	}{
		"plain":      {parcel{data: plain}, len(plain)},
		"compressed": {parcel{data: small, header: zstd}, len(plain)},
		"rubbish":    {parcel{data: []byte("rubbish"), header: zstd}, 4*len("rubbish") + 1},
	} {
		testenv.Same(t, sizeOf(tc.msg), tc.want, "%s: bytes", name)
	}
}
