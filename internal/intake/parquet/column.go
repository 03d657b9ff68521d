package parquet

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/parquet-go/parquet-go/deprecated"
	"github.com/parquet-go/parquet-go/encoding"
	"github.com/parquet-go/parquet-go/format"

	"github.com/tranchehq/tranche/internal/intake/row"
)

const maxHeldBytes = 256 << 20

// column reads one leaf of the schema, entry by entry, across the pages of a row group.
type column struct {
	file     *Reader
	leaf     *format.SchemaElement
	name     string // of the top-level column
	maxRep   int
	maxDef   int
	codec    format.CompressionCodec
	at, end  int64 // of the chunk in the file
	values   int64 // remaining in the chunk
	left     int   // remaining entries of the page
	reps     hybrid
	defs     hybrid
	decoder  decoder
	words    *decoded // the dictionary
	held     int64    // bytes of the page
	wordHeld int64    // bytes of the dictionary

	rep, def int
	value    value
	over     bool // the chunk ended
}

func (c *column) open(chunk *columnChunk) error {
	m, start := &chunk.Meta, chunk.start()
	inside := start >= 4 && start <= c.file.size
	if !inside || m.Compressed < 0 || m.Compressed > c.file.size-start || m.Values < 0 {
		return bad("column %s claims to be outside of the file; the file is damaged, write it again", row.Quote(c.name))
	}
	c.codec, c.at, c.end, c.values = m.Codec, start, start+m.Compressed, m.Values
	c.left, c.words, c.over = 0, nil, false
	c.file.held -= c.held + c.wordHeld
	c.held, c.wordHeld = 0, 0
	return c.advance()
}

func (c *column) advance() (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = c.damaged()
		}
	}()
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
	c.rep, c.def = int(c.reps.read()), int(c.defs.read())
	if c.rep > c.maxRep || c.def > c.maxDef {
		panic(errPage)
	}
	if c.def == c.maxDef {
		c.value = c.decoder.next()
	}
	return nil
}

func (c *column) damaged() error {
	return bad("column %s, near row %d: a page is damaged; write the file again", row.Quote(c.name), c.file.row+1)
}

// plainDictionary is the name that old writers use for both dictionary encodings.
const plainDictionary = format.PlainDictionary //nolint:staticcheck // it is read

const maxPageHeader = 1 << 20

// header reads the header at the current position. A few hundred bytes nearly always hold it.
func (c *column) header() (*format.PageHeader, error) {
	for room := int64(512); ; room *= 16 {
		data := make([]byte, min(room, c.end-c.at))
		if _, err := c.file.input.ReadAt(data, c.at); err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read the Parquet file: %w", err)
		}
		h := &format.PageHeader{}
		if n, err := decodeThrift(data, h); err == nil {
			c.at += int64(n)
			return h, nil
		}
		if int64(len(data)) < room || room >= maxPageHeader {
			return nil, c.damaged()
		}
	}
}

func (c *column) page() error {
	if c.at >= c.end {
		return bad("column %s ends before row %d; the file is damaged, write it again", row.Quote(c.name), c.file.row+1)
	}
	h, err := c.header()
	if err != nil {
		return err
	}
	packed, unpacked := int64(h.CompressedPageSize), int64(h.UncompressedPageSize)
	switch {
	case packed < 0 || unpacked < 0 || packed > c.end-c.at:
		return c.damaged()
	case packed > maxPageBytes || unpacked > maxPageBytes:
		return bad("column %s, near row %d: a page of %d bytes, and at most %s are read; write it with smaller "+
			"pages", row.Quote(c.name), c.file.row+1, max(packed, unpacked), row.Size(maxPageBytes))
	case h.Type > format.DataPageV2 || h.Type == format.IndexPage: // or an unknown type
		c.at += packed
		return nil
	}
	old := &c.held
	if h.Type == format.DictionaryPage {
		old = &c.wordHeld
	}
	hold := func(more int64) error { return c.hold(old, packed+unpacked+more) }
	if err := hold(0); err != nil {
		return err
	}
	data, err := c.data(h)
	if err != nil {
		return err
	}
	return c.take(h, data, hold)
}

func (c *column) data(h *format.PageHeader) ([]byte, error) {
	data := make([]byte, h.CompressedPageSize)
	if _, err := c.file.input.ReadAt(data, c.at); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the Parquet file: %w", err)
	}
	c.at += int64(len(data))
	if h.CRC != 0 && uint32(h.CRC) != crc32.ChecksumIEEE(data) {
		return nil, c.damaged()
	}
	return data, nil
}

func (c *column) hold(old *int64, bytes int64) error {
	c.file.held += bytes - *old
	*old = bytes
	if c.file.held > maxHeldBytes {
		return bad("near row %d the pages of its columns take more than %s together; write it with smaller "+
			"pages, or with fewer columns", c.file.row+1, row.Size(maxHeldBytes))
	}
	return nil
}

func (c *column) take(h *format.PageHeader, data []byte, hold func(int64) error) (err error) {
	c.reps, c.defs = hybrid{width: widthOf(c.maxRep)}, hybrid{width: widthOf(c.maxDef)}
	unpacked := int(h.UncompressedPageSize)
	if v2 := &h.DataPageHeaderV2; h.Type == format.DataPageV2 {
		for _, l := range []*hybrid{&c.reps, &c.defs} {
			n := int(v2.V.RepetitionLevelsByteLength)
			if l == &c.defs {
				n = int(v2.V.DefinitionLevelsByteLength)
			}
			l.data, data = data[:n], data[n:]
			unpacked -= n
		}
		if !v2.V.IsCompressed.Valid || v2.V.IsCompressed.V {
			if data, err = c.unpack(data, unpacked); err != nil {
				return err
			}
		}
		return c.begin(v2.V.Encoding, data, v2.V.NumValues, hold)
	}
	if data, err = c.unpack(data, unpacked); err != nil {
		return err
	}
	if h.Type == format.DictionaryPage {
		how := h.DictionaryPageHeader.V.Encoding
		if how == plainDictionary {
			how = format.Plain
		}
		c.words, err = decodePage(c.leaf, how, data, int64(h.DictionaryPageHeader.V.NumValues), hold)
		return c.explain(err, how)
	}
	v1 := &h.DataPageHeader.V
	for _, l := range []*hybrid{&c.reps, &c.defs} {
		if l.width == 0 {
			continue
		}
		if v1.DefinitionLevelEncoding != format.RLE {
			return bad("column %s has levels of an old encoding; write it with a current version", row.Quote(c.name))
		}
		n := binary.LittleEndian.Uint32(data)
		l.data, data = data[4:4+n], data[4+n:]
	}
	return c.begin(v1.Encoding, data, v1.NumValues, hold)
}

func (c *column) unpack(data []byte, n int) ([]byte, error) {
	if n == 0 && len(data) == 0 { // some writers compress nothing for a page of nulls
		return data, nil
	}
	data, err := unpackPage(c.codec, data, n)
	return data, c.explain(err, 0)
}

func (c *column) explain(err error, how format.Encoding) error {
	_, input := errors.AsType[*row.InputError](err)
	switch {
	case err == nil || input:
		return err
	case errors.Is(err, encoding.ErrNotSupported):
		return bad("column %s is written in the encoding %s, which is not read; write it with a usual one",
			row.Quote(c.name), how)
	}
	return c.damaged()
}

func (c *column) begin(how format.Encoding, data []byte, values int32, hold func(int64) error) (err error) {
	if values < 0 {
		panic(errPage)
	}
	switch {
	case how == plainDictionary || how == format.RLEDictionary:
		x := &indexed{words: c.words}
		if len(data) > 0 {
			x.width, x.data = uint(data[0]), data[1:]
		}
		if x.width > 32 {
			panic(errPage)
		}
		c.decoder = x
	case how == format.RLE && c.leaf.Type.V == format.Boolean && len(data) > 0:
		n := binary.LittleEndian.Uint32(data)
		c.decoder = &flags{hybrid{data: data[4 : 4+n], width: 1}}
	default:
		var d *decoded
		if d, err = decodePage(c.leaf, how, data, int64(values), hold); err != nil {
			return c.explain(err, how)
		}
		c.decoder = d
	}
	c.left = int(min(int64(values), c.values))
	return nil
}

// logicalOf returns the logical type of a column, also from files that use the older ConvertedType.
func logicalOf(e *format.SchemaElement) format.LogicalTypeValue {
	if e.LogicalType.Value != nil || !e.ConvertedType.Valid {
		return e.LogicalType.Value
	}
	ms, us := format.TimeUnit{Value: &format.MilliSeconds{}}, format.TimeUnit{Value: &format.MicroSeconds{}}
	switch e.ConvertedType.V {
	case deprecated.UTF8:
		return &format.StringType{}
	case deprecated.Map, deprecated.MapKeyValue:
		return &format.MapType{}
	case deprecated.List:
		return &format.ListType{}
	case deprecated.Enum:
		return &format.EnumType{}
	case deprecated.Decimal:
		return &format.DecimalType{Scale: e.Scale.V}
	case deprecated.Date:
		return &format.DateType{}
	case deprecated.TimeMillis:
		return &format.TimeType{Unit: ms}
	case deprecated.TimeMicros:
		return &format.TimeType{Unit: us}
	case deprecated.TimestampMillis:
		return &format.TimestampType{Unit: ms, IsAdjustedToUTC: true}
	case deprecated.TimestampMicros:
		return &format.TimestampType{Unit: us, IsAdjustedToUTC: true}
	case deprecated.Uint8, deprecated.Uint16, deprecated.Uint32, deprecated.Uint64:
		return &format.IntType{}
	case deprecated.Json:
		return &format.JsonType{}
	}
	return nil
}

// append writes a value as JSON, or returns nil if a payload cannot hold it.
func (n *node) append(dst []byte, v value, depth int) []byte {
	switch n.Type.V {
	case format.Boolean:
		return strconv.AppendBool(dst, v.n != 0)
	case format.Int32, format.Int64:
		return n.appendInt(dst, v.n)
	case format.Float:
		return appendFloat(dst, float64(math.Float32frombits(uint32(v.n))), 32)
	case format.Double:
		return appendFloat(dst, math.Float64frombits(uint64(v.n)), 64)
	case format.Int96:
		nanos := int64(binary.LittleEndian.Uint64(v.b))
		day := int64(binary.LittleEndian.Uint32(v.b[8:]))
		const julianEpoch = 2_440_588
		return appendTime(dst, time.Unix((day-julianEpoch)*86_400, nanos).UTC(), true)
	default:
		return n.appendBytes(dst, v.b, depth)
	}
}

func (n *node) appendInt(dst []byte, v int64) []byte {
	switch is := n.logical.(type) {
	case *format.DateType:
		return append(time.Unix(v*86_400, 0).UTC().AppendFormat(append(dst, '"'), time.DateOnly), '"')
	case *format.TimeType:
		at := time.Unix(0, 0).UTC().Add(time.Duration(v) * unitOf(is.Unit))
		return append(at.AppendFormat(append(dst, '"'), "15:04:05.999999999"), '"')
	case *format.TimestampType:
		switch unitOf(is.Unit) {
		case time.Millisecond:
			return appendTime(dst, time.UnixMilli(v).UTC(), is.IsAdjustedToUTC)
		case time.Microsecond:
			return appendTime(dst, time.UnixMicro(v).UTC(), is.IsAdjustedToUTC)
		default:
			return appendTime(dst, time.Unix(0, v).UTC(), is.IsAdjustedToUTC)
		}
	case *format.DecimalType:
		return appendDecimal(dst, big.NewInt(v), is.Scale)
	case *format.IntType:
		if !is.IsSigned && n.Type.V == format.Int32 {
			return strconv.AppendUint(dst, uint64(uint32(v)), 10)
		}
		if !is.IsSigned {
			return strconv.AppendUint(dst, uint64(v), 10)
		}
	}
	return strconv.AppendInt(dst, v, 10)
}

func unitOf(unit format.TimeUnit) time.Duration {
	if unit.Value == nil {
		return time.Nanosecond
	}
	return unit.Value.Duration()
}

func appendTime(dst []byte, t time.Time, utc bool) []byte {
	format := "2006-01-02T15:04:05.999999999"
	if utc {
		format += "Z"
	}
	return append(t.AppendFormat(append(dst, '"'), format), '"')
}

// appendFloat writes NaN and the infinities as strings: JSON lacks them.
func appendFloat(dst []byte, f float64, size int) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(strconv.AppendFloat(append(dst, '"'), f, 'g', -1, size), '"')
	}
	return strconv.AppendFloat(dst, f, 'g', -1, size)
}

// appendDecimal writes the exact digits as a string: JSON readers would round a number.
func appendDecimal(dst []byte, n *big.Int, scale int32) []byte {
	digits := new(big.Int).Abs(n).String()
	if scale := int(min(max(scale, 0), 1000)); scale > 0 {
		if missing := scale + 1 - len(digits); missing > 0 {
			digits = strings.Repeat("0", missing) + digits
		}
		digits = digits[:len(digits)-scale] + "." + digits[len(digits)-scale:]
	}
	dst = append(dst, '"')
	if n.Sign() < 0 {
		dst = append(dst, '-')
	}
	return append(append(dst, digits...), '"')
}

func (n *node) appendBytes(dst, b []byte, depth int) []byte {
	switch is := n.logical.(type) {
	case *format.StringType, *format.EnumType:
		return row.AppendText(dst, b, depth)
	case *format.JsonType:
		return row.AppendJSON(dst, b, depth)
	case *format.DecimalType:
		if len(b) > 1024 {
			break
		}
		n := new(big.Int).SetBytes(b)
		if len(b) > 0 && b[0] >= 0x80 { // two's complement
			n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
		}
		return appendDecimal(dst, n, is.Scale)
	case *format.UUIDType:
		if id, err := uuid.FromBytes(b); err == nil {
			return append(dst, `"`+id.String()+`"`...)
		}
	case *format.Float16Type:
		if len(b) == 2 {
			return appendFloat(dst, float16(binary.LittleEndian.Uint16(b)), 32)
		}
	}
	return append(base64.StdEncoding.AppendEncode(append(dst, '"'), b), '"')
}

func float16(bits uint16) float64 {
	sign, exponent, fraction := 1.0, int(bits>>10&31), float64(bits&1023)/1024
	if bits>>15 == 1 {
		sign = -1
	}
	switch exponent {
	case 0:
		return sign * math.Ldexp(fraction, -14)
	case 31:
		if fraction != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	default:
		return sign * math.Ldexp(1+fraction, exponent-15)
	}
}
