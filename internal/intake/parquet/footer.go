package parquet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/tranchehq/tranche/internal/intake/row"
)

// Bounds of a Parquet file. What is larger is refused before anything is allocated for it.
const (
	maxFooterBytes = 16 << 20
	maxColumns     = 4096
	maxChunks      = 1 << 20 // columns of all row groups
	maxSchemaDepth = 64
)

// Physical types.
const (
	typeBoolean = iota
	typeInt32
	typeInt64
	typeInt96
	typeFloat
	typeDouble
	typeBytes
	typeFixed
)

// Repetitions.
const (
	required = iota
	optional
	repeated
)

// schemaElement is a node of the schema as the footer has it.
type schemaElement struct {
	name       string
	physical   int // -1: a group
	length     int
	repetition int
	children   int
	converted  int // -1: none
	logical    int // field of the union LogicalType; 0: none
	scale      int
	unit       int  // of a time or timestamp: 1 ms, 2 µs, 3 ns
	utc        bool // of a timestamp
	signed     bool // of an integer
}

type columnChunk struct {
	codec      int
	values     int64
	start      int64
	compressed int64
}

type rowGroup struct {
	rows   int64
	chunks []columnChunk
}

type footer struct {
	schema []schemaElement
	groups []rowGroup
	rows   int64
	chunks int
}

// bad is an error about a Parquet file as a whole.
func bad(format string, args ...any) error {
	return &row.InputError{Reason: "the Parquet file: " + fmt.Sprintf(format, args...)}
}

// readFooter reads the end of a file, where its metadata stands.
func readFooter(file io.ReaderAt, length int64) (*footer, error) {
	var tail [8]byte
	if length < int64(len(Magic)+len(tail)) {
		return nil, bad("it is cut short; send the whole file")
	}
	if _, err := file.ReadAt(tail[:], length-int64(len(tail))); err != nil {
		return nil, fmt.Errorf("read the Parquet file: %w", err)
	}
	switch string(tail[4:]) {
	case Magic:
	case "PARE":
		return nil, bad("it is encrypted; send it decrypted")
	default:
		return nil, bad("it does not end like one; it is cut short or damaged, send the whole file")
	}
	size := int64(binary.LittleEndian.Uint32(tail[:4]))
	if size > maxFooterBytes {
		return nil, bad("its metadata takes %d bytes, and at most %d are read; write it with fewer row groups", size,
			maxFooterBytes)
	}
	if size > length-int64(len(Magic)+len(tail)) {
		return nil, bad("its metadata claims more bytes than the file has; it is cut short or damaged")
	}
	data := make([]byte, size)
	if _, err := file.ReadAt(data, length-int64(len(tail))-size); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the Parquet file: %w", err)
	}
	t, f := &thriftReader{data: data}, &footer{}
	if err := t.guarded(func() { f.read(t) }); err != nil {
		if input, ok := errors.AsType[*row.InputError](err); ok {
			return nil, input
		}
		return nil, bad("its metadata is damaged; write it again")
	}
	return f, nil
}

func (f *footer) read(t *thriftReader) {
	t.fields(func(id int, kind byte) {
		switch id {
		case 2:
			t.list(func(byte) {
				if len(f.schema) > maxColumns*2 {
					panic(bad("it has more than %d columns; select those that are needed", maxColumns))
				}
				f.schema = append(f.schema, readElement(t))
			})
		case 3:
			f.rows = t.int()
		case 4:
			t.list(func(byte) { f.groups = append(f.groups, f.readGroup(t)) })
		default:
			t.skip(kind)
		}
	})
}

func readElement(t *thriftReader) schemaElement {
	e := schemaElement{physical: -1, converted: -1, signed: true}
	t.fields(func(id int, kind byte) {
		switch id {
		case 1:
			e.physical = int(t.int())
		case 2:
			e.length = int(t.int())
		case 3:
			e.repetition = int(t.int())
		case 4:
			e.name = string(t.bytes())
		case 5:
			e.children = int(t.int())
		case 6:
			e.converted = int(t.int())
		case 7:
			e.scale = int(t.int())
		case 10:
			e.readLogical(t)
		default:
			t.skip(kind)
		}
	})
	return e
}

func (e *schemaElement) readLogical(t *thriftReader) {
	t.fields(func(logical int, _ byte) {
		e.logical = logical
		t.fields(func(id int, kind byte) {
			switch {
			case logical == logicalDecimal && id == 1:
				e.scale = int(t.int())
			case (logical == logicalTime || logical == logicalTimestamp) && id == 1:
				e.utc = kind == thriftTrue
			case (logical == logicalTime || logical == logicalTimestamp) && id == 2:
				t.fields(func(unit int, kind byte) { e.unit = unit; t.skip(kind) })
			case logical == logicalInteger && id == 2:
				e.signed = kind == thriftTrue
			default:
				t.skip(kind)
			}
		})
	})
}

func (f *footer) readGroup(t *thriftReader) (g rowGroup) {
	t.fields(func(id int, kind byte) {
		switch id {
		case 1:
			t.list(func(byte) {
				if f.chunks++; f.chunks > maxChunks {
					panic(bad("it has too many row groups; write it with larger ones"))
				}
				g.chunks = append(g.chunks, readChunk(t))
			})
		case 3:
			g.rows = t.int()
		default:
			t.skip(kind)
		}
	})
	return g
}

func readChunk(t *thriftReader) (c columnChunk) {
	var data, dictionary int64
	t.fields(func(id int, kind byte) {
		if id == 1 {
			panic(bad("its columns stand in other files; write it as one file"))
		}
		if id != 3 {
			t.skip(kind)
			return
		}
		t.fields(func(id int, kind byte) {
			switch id {
			case 4:
				c.codec = int(t.int())
			case 5:
				c.values = t.int()
			case 7:
				c.compressed = t.int()
			case 9:
				data = t.int()
			case 11:
				dictionary = t.int()
			default:
				t.skip(kind)
			}
		})
	})
	c.start = data
	if dictionary > 0 && dictionary < data {
		c.start = dictionary
	}
	return c
}
