package parquet

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"slices"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

var errPage = errors.New("a page is damaged")

// value is a number, the bits of a float, or bytes that are valid until the next value.
type value struct {
	n int64
	b []byte
}

// decoder yields the values of a page. It panics with errPage or a runtime error when the page ends too soon.
type decoder interface{ next() value }

type decoded struct {
	kind    format.Type
	length  int // per value, for FixedLenByteArray
	data    []byte
	offsets []uint32 // for ByteArray: where each begins, and the end
	wide    bool     // Int32 stored as Int64
	i       int
}

func (d *decoded) next() value {
	d.i++
	return d.at(d.i - 1)
}

func (d *decoded) at(i int) value {
	switch {
	case d.kind == format.Boolean:
		return value{n: int64(d.data[i/8] >> (i % 8) & 1)}
	case d.wide:
		return value{n: int64(int32(binary.LittleEndian.Uint64(d.data[i*8:])))}
	case d.kind == format.Int32 || d.kind == format.Float:
		return value{n: int64(int32(binary.LittleEndian.Uint32(d.data[i*4:])))}
	case d.kind == format.Int64 || d.kind == format.Double:
		return value{n: int64(binary.LittleEndian.Uint64(d.data[i*8:]))}
	case d.offsets != nil:
		b := d.data[d.offsets[i]:d.offsets[i+1]]
		if d.length > 0 && len(b) != d.length {
			panic(errPage)
		}
		return value{b: b}
	case d.length == 0:
		panic(errPage) // the page is empty
	default:
		return value{b: d.data[i*d.length : (i+1)*d.length]}
	}
}

// decodePage decodes the values of a page with parquet-go, which allocates what the data claims. So the claims are
// checked first, and hold is called with the bytes needed beyond the data.
func decodePage(e *format.SchemaElement, how format.Encoding, data []byte, claimed int64,
	hold func(int64) error) (*decoded, error) {
	d := &decoded{kind: e.Type.V}
	switch d.kind {
	case format.Int96:
		d.length = 12
	case format.FixedLenByteArray:
		d.length = int(e.TypeLength.V)
	}
	if len(data) == 0 {
		return d, nil
	}
	data = slices.Clip(data) // the decoder reads past the end up to the capacity
	if err := checkClaims(how, data, claimed, hold); err != nil {
		return nil, err
	}
	kind, enc := typeOf(d.kind, d.length), parquet.LookupEncoding(how)
	switch {
	case how == format.DeltaByteArray && d.kind == format.FixedLenByteArray: // both are encoded alike
		kind = parquet.ByteArrayType
	case how == format.DeltaBinaryPacked && d.kind == format.Int32:
		// DuckDB writes differences of 33 bits, which parquet-go misreads. Wider sums have the same low 32 bits.
		d.wide, kind = true, parquet.Int64Type
	}
	var into []byte
	if enc.CanDecodeInPlace() {
		into = data
	}
	values, err := kind.Decode(kind.NewValues(into, nil), data, enc)
	if err != nil {
		return nil, err
	}
	d.data, d.offsets = values.Data()
	return d, nil
}

// checkClaims calls hold with the bytes that decoding needs beyond those of the page.
func checkClaims(how format.Encoding, data []byte, claimed int64, hold func(int64) error) error {
	more := int64(len(data))
	switch how {
	case format.DeltaBinaryPacked:
		n, _ := skipDelta(data, claimed, 64)
		more += n * 8
	case format.DeltaLengthByteArray:
		n, _ := skipDelta(data, claimed, 32)
		more += n * 8
	case format.DeltaByteArray:
		n, suffixes := skipDelta(data, claimed, 32)
		_, _ = skipDelta(suffixes, claimed, 32)
		if more += n * 12; hold(more) != nil {
			return hold(more)
		}
		prefixes, err := parquet.LookupEncoding(format.DeltaBinaryPacked).DecodeInt32(nil, data)
		if err != nil {
			return err
		}
		for _, n := range prefixes {
			more += int64(max(n, 0))
		}
	}
	return hold(more)
}

func typeOf(kind format.Type, length int) parquet.Type {
	if kind == format.FixedLenByteArray {
		return parquet.FixedLenByteArrayType(length)
	}
	return []parquet.Type{format.Boolean: parquet.BooleanType, format.Int32: parquet.Int32Type,
		format.Int64: parquet.Int64Type, format.Int96: parquet.Int96Type, format.Float: parquet.FloatType,
		format.Double: parquet.DoubleType, format.ByteArray: parquet.ByteArrayType}[kind]
}

// skipDelta skips numbers in DELTA_BINARY_PACKED and returns their count and the data after them. More values than
// claimed, or wider ones, are damage.
func skipDelta(data []byte, claimed int64, width byte) (int64, []byte) {
	var head [4]uint64 // values per block, miniblocks, total values, first value
	for i := range head {
		head[i], data = uvarint(data)
	}
	block, minis, left := head[0], head[1], head[2]
	if block == 0 || block > 1<<16 || minis == 0 || block%(minis*8) != 0 || left > uint64(claimed) {
		panic(errPage)
	}
	for left -= min(left, 1); left > 0; {
		_, data = uvarint(data) // the minimum difference
		var widths []byte
		for widths, data = data[:minis], data[minis:]; len(widths) > 0 && left > 0; widths = widths[1:] {
			if widths[0] > width {
				panic(errPage)
			}
			data = data[min(uint64(len(data)), block/minis*uint64(widths[0])/8):]
			left -= min(left, block/minis)
		}
	}
	return int64(head[2]), data
}

func uvarint(data []byte) (uint64, []byte) {
	v, n := binary.Uvarint(data)
	if n <= 0 {
		panic(errPage)
	}
	return v, data[n:]
}

// hybrid reads runs of equal or packed values: levels, indexes, booleans. parquet-go is not used here: it decodes
// all runs of a page ahead, and ten bytes can claim two thousand million values, while a real page has a million.
// It also takes a run of booleans for whole bytes, as only it writes them.
type hybrid struct {
	data  []byte
	width uint
	left  uint64 // remaining values of the run
	bits  []byte // of a packed run
	bit   uint64
	same  uint64
}

func (h *hybrid) read() uint64 {
	if h.width == 0 {
		return 0
	}
	for h.left == 0 {
		h.begin()
	}
	h.left--
	if h.bits == nil {
		return h.same
	}
	v := uint64(0)
	for got := uint(0); got < h.width; {
		take := min(8-uint(h.bit%8), h.width-got)
		v |= (uint64(h.bits[h.bit/8]) >> (h.bit % 8) & (1<<take - 1)) << got
		got += take
		h.bit += uint64(take)
	}
	return v
}

func (h *hybrid) begin() {
	var head uint64
	head, h.data = uvarint(h.data)
	h.left, h.bits, h.bit, h.same = head>>1, nil, 0, 0
	if head&1 == 0 {
		for i := range (h.width + 7) / 8 {
			h.same |= uint64(h.data[i]) << (8 * i)
		}
		h.data = h.data[(h.width+7)/8:]
		return
	}
	// The last run may be cut to the bytes of its values.
	size := min(uint64(len(h.data)), h.left*uint64(h.width))
	if h.left > uint64(len(h.data)) {
		panic(errPage)
	}
	h.bits, h.data = h.data[:size:size], h.data[size:]
	h.left *= 8
}

func (h *hybrid) next() value { return value{n: int64(h.read())} }

// flags reads booleans: parquet-go writes a run of true as 255.
type flags struct{ hybrid }

func (f *flags) next() value { return value{n: int64(min(f.read(), 1))} }

type indexed struct {
	hybrid
	words *decoded
}

func (x *indexed) next() value { return x.words.at(int(x.read())) }

func widthOf(level int) uint { return uint(bits.Len(uint(level))) }
