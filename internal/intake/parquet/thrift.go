package parquet

import "errors"

// errThrift is wrapped by what is not what it says it is.
var errThrift = errors.New("its metadata is damaged")

// thriftReader reads Thrift's compact protocol from memory. Whatever lengths the data claims, nothing is allocated for
// them: texts are parts of the data, and lists are read element by element.
type thriftReader struct {
	data  []byte
	at    int
	depth int
}

// Types of the compact protocol.
const (
	thriftTrue   = 1
	thriftFalse  = 2
	thriftByte   = 3
	thriftDouble = 7
	thriftBinary = 8
	thriftList   = 9
	thriftSet    = 10
	thriftMap    = 11
	thriftStruct = 12

	maxThriftDepth = 32
)

func (t *thriftReader) fail() { panic(errThrift) }

// guarded runs f and returns what went wrong with the data, also where a claim led outside of it.
func (t *thriftReader) guarded(f func()) (err error) {
	defer func() {
		if cause, ok := recover().(error); ok {
			err = errors.Join(errThrift, cause)
		}
	}()
	f()
	return nil
}

func (t *thriftReader) byte() byte {
	b := t.data[t.at]
	t.at++
	return b
}

func (t *thriftReader) varint() (v uint64) {
	for shift := 0; shift < 64; shift += 7 {
		b := t.byte()
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v
		}
	}
	t.fail()
	return 0
}

func (t *thriftReader) int() int64 {
	v := t.varint()
	return int64(v>>1) ^ -int64(v&1)
}

func (t *thriftReader) bytes() []byte {
	n := t.varint()
	if n > uint64(len(t.data)-t.at) {
		t.fail()
	}
	b := t.data[t.at : t.at+int(n)]
	t.at += int(n)
	return b
}

func (t *thriftReader) skip(kind byte) {
	switch kind {
	case thriftTrue, thriftFalse:
	case thriftByte:
		t.byte()
	case 4, 5, 6:
		t.varint()
	case thriftDouble:
		t.at += 8
	case thriftBinary:
		t.bytes()
	case thriftList, thriftSet:
		t.list(func(element byte) {
			if element <= thriftFalse {
				t.byte()
			} else {
				t.skip(element)
			}
		})
	case thriftMap:
		t.skipMap()
	case thriftStruct:
		t.fields(func(_ int, kind byte) { t.skip(kind) })
	default:
		t.fail()
	}
}

func (t *thriftReader) skipMap() {
	n := t.varint()
	if n == 0 {
		return
	}
	kinds := t.byte()
	for ; n > 0; n-- {
		t.skip(kinds >> 4)
		t.skip(kinds & 15)
		if t.at > len(t.data) {
			t.fail()
		}
	}
}

// list calls f for each element, which f reads. Elements take a byte at least.
func (t *thriftReader) list(f func(kind byte)) {
	head := t.byte()
	n := uint64(head >> 4)
	if n == 15 {
		n = t.varint()
	}
	if n > uint64(len(t.data)-t.at) {
		t.fail()
	}
	t.deeper(func() {
		for ; n > 0; n-- {
			f(head & 15)
		}
	})
}

// fields calls f for each field of a struct, which f reads or skips. A boolean is in its kind.
func (t *thriftReader) fields(f func(id int, kind byte)) {
	id := 0
	t.deeper(func() {
		for {
			head := t.byte()
			if head == 0 {
				return
			}
			if delta := int(head >> 4); delta > 0 {
				id += delta
			} else {
				id = int(t.int())
			}
			f(id, head&15)
		}
	})
}

func (t *thriftReader) deeper(f func()) {
	if t.depth++; t.depth > maxThriftDepth {
		t.fail()
	}
	f()
	t.depth--
}
