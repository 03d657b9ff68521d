package main

import (
	"io"
	"math/bits"
	"strconv"
)

// csvHeader names the columns of the input; "id" is the key column.
const csvHeader = "id,name,segment,since\n"

// items makes the input of all contestants: n customers, each with a key of 12 bytes and a payload of about 80. They
// are computed, not stored, so that 10 million need no memory; all that is in the clock is a few appends.
type items struct {
	n      int
	random bool // the keys come in no order
}

// number returns the customer number of the i-th item. A multiplication by an odd constant in a power of two is a
// permutation, so random keys are distinct too.
func (s items) number(i int) uint64 {
	if !s.random {
		return uint64(i) + 1
	}
	width := max(bits.Len(uint(s.n)), 20)
	mask := uint64(1)<<width - 1
	x := uint64(i) * 0x9E3779B1 & mask
	x ^= x >> (width / 2)
	return x*0x85EBCA6B&mask + 1
}

func (s items) appendKey(b []byte, i int) []byte {
	b = append(b, "CUST-"...)
	return appendPadded(b, s.number(i), 7)
}

// appendPayload appends what a CSV row of the item becomes: its fields as a JSON object.
func (s items) appendPayload(b []byte, i int) []byte {
	b = append(b, `{"id":"`...)
	b = s.appendKey(b, i)
	b = append(b, `","name":"Customer `...)
	b = appendPadded(b, s.number(i), 7)
	b = append(b, `","segment":"retail","since":"`...)
	b = strconv.AppendInt(b, int64(1990+i%30), 10)
	return append(b, `"}`...)
}

func (s items) appendCSV(b []byte, i int) []byte {
	b = s.appendKey(b, i)
	b = append(b, ",Customer "...)
	b = appendPadded(b, s.number(i), 7)
	b = append(b, ",retail,"...)
	b = strconv.AppendInt(b, int64(1990+i%30), 10)
	return append(b, '\n')
}

func appendPadded(b []byte, v uint64, width int) []byte {
	for limit := uint64(10); width > 1; width-- {
		if v < limit {
			// Zeros in front for every digit that is still missing.
			for ; width > 1; width-- {
				b = append(b, '0')
			}
			break
		}
		limit *= 10
	}
	return strconv.AppendUint(b, v, 10)
}

// csv returns the items as a CSV stream.
func (s items) csv() io.Reader {
	next := 0
	return &stream{head: []byte(csvHeader), fill: func(b []byte) ([]byte, bool) {
		for ; next < s.n && len(b) < streamBuffer; next++ {
			b = s.appendCSV(b, next)
		}
		return b, next < s.n
	}}
}

// streamBuffer is how much a stream makes at a time.
const streamBuffer = 64 << 10

// stream is a reader over bytes that are made as they are read: head, then what fill appends until it gives no reason.
type stream struct {
	head []byte
	fill func(b []byte) (filled []byte, more bool)

	buf  []byte
	off  int
	done bool
}

func (s *stream) Read(p []byte) (int, error) {
	for s.off == len(s.buf) {
		if s.done {
			return 0, io.EOF
		}
		more := false
		s.buf, more = s.fill(append(s.buf[:0], s.head...))
		s.head, s.off, s.done = nil, 0, !more
	}
	n := copy(p, s.buf[s.off:])
	s.off += n
	return n, nil
}
