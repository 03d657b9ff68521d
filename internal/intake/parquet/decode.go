package parquet

import (
	"encoding/binary"
	"errors"
	"math/bits"
)

// errPage is what a page of data is that is not what its header says.
var errPage = errors.New("a page is damaged")

// value is one of a column: a number, its bits for floats, or bytes that are good until the next.
type value struct {
	n int64
	b []byte
}

// decoder yields the values of a page, one by one. Its memory does not depend on what the page claims. It panics with
// errPage, or with an error of the runtime, when the page ends too soon.
type decoder interface{ next() value }

func uvarint(data []byte, at int) (uint64, int) {
	v, n := binary.Uvarint(data[at:])
	if n <= 0 {
		panic(errPage)
	}
	return v, at + n
}

// bitsAt reads up to 64 bits at a bit's place, the lowest first.
func bitsAt(data []byte, at uint64, width uint) (v uint64) {
	for got := uint(0); got < width; {
		b := uint64(data[at/8]) >> (at % 8)
		take := min(8-uint(at%8), width-got)
		v |= (b & (1<<take - 1)) << got
		got += take
		at += uint64(take)
	}
	return v
}

// hybrid reads runs of equal values and of packed ones: levels, indexes, booleans.
type hybrid struct {
	data   []byte
	at     int
	width  uint
	left   uint64 // values of the run
	packed bool
	bit    uint64 // of a packed run
	same   uint64
}

func (h *hybrid) read() uint64 {
	if h.width == 0 {
		return 0
	}
	for h.left == 0 {
		h.begin()
	}
	h.left--
	if !h.packed {
		return h.same
	}
	v := bitsAt(h.data, h.bit, h.width)
	h.bit += uint64(h.width)
	return v
}

func (h *hybrid) begin() {
	var head uint64
	head, h.at = uvarint(h.data, h.at)
	h.packed = head&1 == 1
	if !h.packed {
		h.left, h.same = head>>1, 0
		for i := range (h.width + 7) / 8 {
			h.same |= uint64(h.data[h.at]) << (8 * i)
			h.at++
		}
		return
	}
	groups := head >> 1
	if groups > uint64(len(h.data)) {
		panic(errPage)
	}
	h.left, h.bit = groups*8, uint64(h.at)*8
	h.at += int(groups) * int(h.width)
}

func (h *hybrid) next() value { return value{n: int64(h.read())} }

// plain reads values as they are.
type plain struct {
	data     []byte
	at       int
	bit      uint64
	physical int
	length   int
}

func (p *plain) take(n int) []byte {
	if n < 0 || n > len(p.data)-p.at {
		panic(errPage)
	}
	b := p.data[p.at : p.at+n]
	p.at += n
	return b
}

func (p *plain) next() value {
	switch p.physical {
	case typeBoolean:
		v := bitsAt(p.data, p.bit, 1)
		p.bit++
		return value{n: int64(v)}
	case typeInt32, typeFloat:
		return value{n: int64(int32(binary.LittleEndian.Uint32(p.take(4))))}
	case typeInt64, typeDouble:
		return value{n: int64(binary.LittleEndian.Uint64(p.take(8)))}
	case typeInt96:
		return value{b: p.take(12)}
	case typeFixed:
		return value{b: p.take(p.length)}
	default:
		return value{b: p.take(int(binary.LittleEndian.Uint32(p.take(4))))}
	}
}

// indexed reads values of a dictionary.
type indexed struct {
	hybrid
	values []value
}

func (x *indexed) next() value { return x.values[x.read()] }

// delta reads whole numbers as differences, in blocks.
type delta struct {
	data         []byte
	at           int
	block, minis uint64
	left, inMini uint64 // values to come, in all and of the miniblock
	mini         uint64 // that is read
	widths       []byte
	bit          uint64
	least, last  int64
	first        bool
}

func newDelta(data []byte, at int) *delta {
	d := &delta{data: data, first: true}
	d.block, at = uvarint(data, at)
	d.minis, at = uvarint(data, at)
	d.left, at = uvarint(data, at)
	d.last, d.at = zigzag(data, at)
	if d.block == 0 || d.block > 1<<20 || d.minis == 0 || d.block%(d.minis*8) != 0 {
		panic(errPage)
	}
	return d
}

func zigzag(data []byte, at int) (int64, int) {
	v, at := uvarint(data, at)
	return int64(v>>1) ^ -int64(v&1), at
}

func (d *delta) read() int64 {
	if d.left == 0 {
		panic(errPage)
	}
	d.left--
	if d.first {
		d.first = false
		return d.last
	}
	if d.inMini == 0 {
		d.nextMini()
	}
	d.inMini--
	width := uint(d.widths[d.mini])
	d.last += d.least + int64(bitsAt(d.data, d.bit, width))
	d.bit += uint64(width)
	return d.last
}

func (d *delta) nextMini() {
	if d.widths == nil || d.mini+1 == d.minis {
		if d.widths != nil {
			d.at = int(d.bit / 8)
		}
		d.least, d.at = zigzag(d.data, d.at)
		d.widths = d.data[d.at : d.at+int(d.minis)]
		d.at += int(d.minis)
		d.mini, d.bit = 0, uint64(d.at)*8
	} else {
		d.mini++
	}
	d.inMini = d.block / d.minis
	if d.widths[d.mini] > 64 {
		panic(errPage)
	}
}

// end returns where the data after the numbers starts. It goes over them miniblock by miniblock.
func (d *delta) end() int {
	c := *d
	if c.left > 0 {
		c.left--
	}
	for c.left > 0 {
		c.nextMini()
		c.bit += uint64(c.widths[c.mini]) * c.inMini
		c.left -= min(c.left, c.inMini)
		c.inMini = 0
	}
	if c.widths == nil {
		return c.at
	}
	end := int(c.bit / 8)
	if end > len(c.data) || end < c.at {
		panic(errPage)
	}
	return end
}

func (d *delta) next() value { return value{n: d.read()} }

// lengths reads texts whose lengths stand before all of them.
type lengths struct {
	delta *delta
	rest  plain
}

func newLengths(data []byte, at int) *lengths {
	d := newDelta(data, at)
	return &lengths{d, plain{data: data, at: d.end()}}
}

func (l *lengths) next() value { return value{b: l.rest.take(int(l.delta.read()))} }

// shared reads texts of which each begins like the one before.
type shared struct {
	prefix *delta
	suffix *lengths
	most   int
	last   []byte
}

func newShared(data []byte, most int) *shared {
	d := newDelta(data, 0)
	return &shared{prefix: d, suffix: newLengths(data, d.end()), most: most}
}

func (s *shared) next() value {
	n := s.prefix.read()
	if n < 0 || n > int64(len(s.last)) {
		panic(errPage)
	}
	s.last = append(s.last[:n], s.suffix.next().b...)
	if len(s.last) > s.most {
		panic(errLongValue)
	}
	return value{b: s.last}
}

// errLongValue is for one value that is larger than a field may be.
var errLongValue = errors.New("a value is too long")

// split reads values whose first bytes stand together, then their second ones, and so on.
type split struct {
	plain
	width, count, i int
}

func (s *split) next() value {
	if s.i >= s.count {
		panic(errPage)
	}
	b := make([]byte, s.width)
	for k := range b {
		b[k] = s.data[k*s.count+s.i]
	}
	s.i++
	one := plain{data: b, physical: s.physical, length: s.length}
	return one.next()
}

func widthOf(level int) uint { return uint(bits.Len(uint(level))) }
