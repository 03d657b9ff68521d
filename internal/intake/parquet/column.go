package parquet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/tranchehq/tranche/internal/intake/row"
)

// maxHeldBytes is what the pages at hand of all columns may take together.
const maxHeldBytes = 256 << 20

// column reads one leaf of the schema, entry by entry, over the pages of a row group.
type column struct {
	file     *Reader
	leaf     *schemaElement
	name     string // of the top-level column
	maxRep   int
	maxDef   int
	codec    int
	at, end  int64 // of the chunk in the file
	values   int64 // of the chunk that are to come
	left     int   // entries of the page
	reps     hybrid
	defs     hybrid
	decoder  decoder
	words    []value // the dictionary
	held     int64   // bytes of the page
	wordHeld int64   // bytes of the dictionary

	// The entry at hand.
	rep, def int
	value    value
	over     bool // there is none: the chunk has ended
}

// open begins with a chunk.
func (c *column) open(chunk *columnChunk) error {
	inside := chunk.start >= 4 && chunk.start <= c.file.size
	if !inside || chunk.compressed < 0 || chunk.compressed > c.file.size-chunk.start || chunk.values < 0 {
		return bad("column %s claims to stand outside of the file; it is damaged, write it again", row.Quote(c.name))
	}
	c.codec, c.at, c.end, c.values = chunk.codec, chunk.start, chunk.start+chunk.compressed, chunk.values
	c.left, c.words, c.over = 0, nil, false
	c.file.held -= c.held + c.wordHeld
	c.held, c.wordHeld = 0, 0
	return c.advance()
}

// advance goes to the next entry.
func (c *column) advance() (err error) {
	for c.left == 0 {
		if c.values == 0 {
			c.over = true
			return nil
		}
		if err := c.page(); err != nil {
			return err
		}
	}
	c.left--
	c.values--
	defer func() {
		if cause := recover(); cause != nil {
			err = c.damaged(cause)
		}
	}()
	c.rep, c.def = int(c.reps.read()), int(c.defs.read())
	if c.rep > c.maxRep || c.def > c.maxDef {
		panic(errPage)
	}
	if c.def == c.maxDef {
		c.value = c.decoder.next()
	}
	return nil
}

func (c *column) damaged(cause any) error {
	if err, ok := cause.(error); ok && errors.Is(err, errLongValue) {
		return c.file.rowError(c.name, "larger than "+row.Size(c.file.cfg.MaxFieldBytes)+
			"; shorten it, or leave the column out")
	}
	return bad("column %s, near row %d: a page is damaged; write the file again", row.Quote(c.name), c.file.row+1)
}

// pageHeader is what stands before a page.
type pageHeader struct {
	kind, unpacked, packed int64
	values                 int64
	encoding               int64
	levelEncoding          int64
	repBytes, defBytes     int64 // of version 2
	plainPage              bool  // of version 2: not compressed
}

// Kinds of pages.
const (
	dataPage       = 0
	indexPage      = 1
	dictionaryPage = 2
	dataPage2      = 3
)

const maxPageHeader = 1 << 20

// header reads the header at the place in the chunk. A few hundred bytes nearly always hold it.
func (c *column) header() (h pageHeader, err error) {
	for room := int64(512); ; room *= 16 {
		data := make([]byte, min(room, c.end-c.at))
		if _, err := c.file.input.ReadAt(data, c.at); err != nil && !errors.Is(err, io.EOF) {
			return h, fmt.Errorf("read the Parquet file: %w", err)
		}
		t := &thriftReader{data: data}
		h = pageHeader{}
		if err := t.guarded(func() { h.read(t) }); err == nil {
			c.at += int64(t.at)
			return h, nil
		}
		if int64(len(data)) < room || room >= maxPageHeader {
			return h, c.damaged(errPage)
		}
	}
}

func (h *pageHeader) read(t *thriftReader) {
	inner := func(into map[int]*int64) {
		t.fields(func(id int, kind byte) {
			if p := into[id]; p != nil {
				*p = t.int()
				return
			}
			if id == 7 && (kind == thriftTrue || kind == thriftFalse) {
				h.plainPage = kind == thriftFalse
				return
			}
			t.skip(kind)
		})
	}
	t.fields(func(id int, kind byte) {
		switch id {
		case 1:
			h.kind = t.int()
		case 2:
			h.unpacked = t.int()
		case 3:
			h.packed = t.int()
		case 5:
			inner(map[int]*int64{1: &h.values, 2: &h.encoding, 3: &h.levelEncoding})
		case 7:
			inner(map[int]*int64{1: &h.values, 2: &h.encoding})
		case 8:
			inner(map[int]*int64{1: &h.values, 4: &h.encoding, 5: &h.defBytes, 6: &h.repBytes})
		default:
			t.skip(kind)
		}
	})
}

// page reads the next page.
func (c *column) page() (err error) {
	if c.at >= c.end {
		return bad("column %s ends before row %d; the file is damaged, write it again", row.Quote(c.name), c.file.row+1)
	}
	h, err := c.header()
	if err != nil {
		return err
	}
	switch {
	case h.packed < 0 || h.unpacked < 0 || h.values < 0 || h.packed > c.end-c.at:
		return c.damaged(errPage)
	case h.packed > maxPageBytes || h.unpacked > maxPageBytes:
		return bad("column %s, near row %d: a page of %d bytes, and at most %s are read; write it with smaller "+
			"pages", row.Quote(c.name), c.file.row+1, max(h.packed, h.unpacked), row.Size(maxPageBytes))
	case h.kind == indexPage:
		c.at += h.packed
		return nil
	}
	old := &c.held
	if h.kind == dictionaryPage {
		old = &c.wordHeld
	}
	if err := c.hold(old, h.packed+h.unpacked); err != nil {
		return err
	}
	data := make([]byte, h.packed)
	if _, err := c.file.input.ReadAt(data, c.at); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the Parquet file: %w", err)
	}
	c.at += h.packed
	defer func() {
		if cause := recover(); cause != nil {
			err = c.damaged(cause)
		}
	}()
	return c.take(&h, data)
}

// hold makes sure that all pages at hand stay within what they may take together.
func (c *column) hold(old *int64, bytes int64) error {
	c.file.held += bytes - *old
	*old = bytes
	if c.file.held > maxHeldBytes {
		return bad("near row %d the pages of its columns take more than %s together; write it with smaller "+
			"pages, or with fewer columns", c.file.row+1, row.Size(maxHeldBytes))
	}
	return nil
}

func (c *column) take(h *pageHeader, data []byte) (err error) {
	c.reps, c.defs = hybrid{width: widthOf(c.maxRep)}, hybrid{width: widthOf(c.maxDef)}
	switch h.kind {
	case dataPage2:
		c.reps.data, data = data[:h.repBytes], data[h.repBytes:]
		c.defs.data, data = data[:h.defBytes], data[h.defBytes:]
		if !h.plainPage {
			if data, err = unpackPage(c.codec, data, int(h.unpacked-h.repBytes-h.defBytes)); err != nil {
				return c.explain(err)
			}
		}
		return c.begin(h, data)
	case dataPage, dictionaryPage:
		if data, err = unpackPage(c.codec, data, int(h.unpacked)); err != nil {
			return c.explain(err)
		}
	default:
		return nil // of a kind that is not known yet
	}
	if h.kind == dictionaryPage {
		return c.dictionary(h, data)
	}
	if c.maxRep > 0 || c.maxDef > 0 {
		if h.levelEncoding != encodingRLE {
			return bad("column %s has levels of an old encoding; write it with a current version", row.Quote(c.name))
		}
	}
	for _, l := range []*hybrid{&c.reps, &c.defs} {
		if l.width > 0 {
			n := binary.LittleEndian.Uint32(data)
			l.data, data = data[4:4+n], data[4+n:]
		}
	}
	return c.begin(h, data)
}

func (c *column) explain(err error) error {
	if _, ok := errors.AsType[*row.InputError](err); ok {
		return err
	}
	return c.damaged(err)
}

// dictionary keeps the values that indexes of later pages mean.
func (c *column) dictionary(h *pageHeader, data []byte) error {
	if h.values > int64(len(data)) && h.values > 0 {
		panic(errPage) // each takes a byte at least, but for booleans, which have no dictionary
	}
	const wordBytes = 40
	if err := c.hold(&c.wordHeld, h.packed+h.unpacked+h.values*wordBytes); err != nil {
		return err
	}
	p := &plain{data: data, physical: c.leaf.physical, length: c.leaf.length}
	c.words = make([]value, h.values)
	for i := range c.words {
		c.words[i] = p.next()
	}
	return nil
}

// Encodings.
const (
	encodingPlain           = 0
	encodingPlainDictionary = 2
	encodingRLE             = 3
	encodingDelta           = 5
	encodingDeltaLength     = 6
	encodingDeltaBytes      = 7
	encodingDictionary      = 8
	encodingSplit           = 9
)

// begin sets the page's values up.
func (c *column) begin(h *pageHeader, data []byte) error {
	p := plain{data: data, physical: c.leaf.physical, length: c.leaf.length}
	switch h.encoding {
	case encodingPlain:
		c.decoder = &p
	case encodingPlainDictionary, encodingDictionary:
		x := &indexed{values: c.words}
		if len(data) > 0 {
			x.width, x.data = uint(data[0]), data[1:]
		}
		if x.width > 32 {
			panic(errPage)
		}
		c.decoder = x
	case encodingRLE:
		n := binary.LittleEndian.Uint32(data)
		c.decoder = &hybrid{data: data[4 : 4+n], width: 1}
	case encodingDelta:
		c.decoder = newDelta(data, 0)
	case encodingDeltaLength:
		c.decoder = newLengths(data, 0)
	case encodingDeltaBytes:
		c.decoder = newShared(data, c.file.cfg.MaxFieldBytes)
	case encodingSplit:
		width := map[int]int{typeInt32: 4, typeFloat: 4, typeInt64: 8, typeDouble: 8,
			typeFixed: c.leaf.length}[c.leaf.physical]
		if width <= 0 {
			panic(errPage)
		}
		c.decoder = &split{plain: p, width: width, count: len(data) / width}
	default:
		return bad("column %s is written in encoding %d, which is not read; write it with a usual one",
			row.Quote(c.name), h.encoding)
	}
	c.left = int(min(h.values, c.values))
	return nil
}
