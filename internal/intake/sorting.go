package intake

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/internal/intake/row"
)

// Sizes of a sort: rows in memory, and the buffer of each merged part.
const (
	sortMemory = 32 << 20
	sortBuffer = 64 << 10
)

// sorter sorts rows by a field: numbers before other texts, missing values last. The sort is stable. It keeps 32
// MiB of rows in memory; more go to a file, in sorted parts that are merged. It reads all rows before it returns
// the first.
type sorter struct {
	field    string
	desc     bool
	spool    Spool
	memory   int
	given    bool // all rows were read
	found    bool // at least one row has the field, or none need have it
	rows     []sortedRow
	size     int // of the rows in memory
	file     *Kept
	parts    []sortedPart
	merging  []*openPart // of the parts, the one with the least row first
	finished int         // rows in memory already returned
}

type sortedPart struct{ begin, end int64 }

type sortedRow struct {
	row.Item

	by sortValue
}

type sortValue struct {
	class int // isNumber, isText or isNothing
	text  string
	decimal
}

const (
	isNumber = iota
	isText
	isNothing // missing, null, empty or anything else
)

func (s *sorter) compare(a, b *sortValue) int {
	if a.class == isNothing || b.class == isNothing {
		return cmp.Compare(a.class, b.class)
	}
	order := cmp.Or(cmp.Compare(a.class, b.class), a.decimal.compare(&b.decimal), cmp.Compare(a.text, b.text))
	if s.desc {
		return -order
	}
	return order
}

func (s *sorter) valueOf(payload []byte) sortValue {
	for _, f := range fieldsOf(payload) {
		if f.plain == s.field {
			s.found = true
			return sortValueOf(f.value)
		}
	}
	return sortValue{class: isNothing}
}

func sortValueOf(value jsontext.Value) sortValue {
	said := string(value)
	switch value.Kind() {
	case '"':
		plain, err := jsontext.AppendUnquote(nil, value)
		if err != nil || len(plain) == 0 {
			return sortValue{class: isNothing}
		}
		said = string(plain)
	case 't', 'f':
		return sortValue{class: isText, text: said}
	case '0':
	default:
		return sortValue{class: isNothing}
	}
	if number, ok := parseDecimal(said); ok {
		return sortValue{class: isNumber, decimal: number}
	}
	return sortValue{class: isText, text: said}
}

// Next reads all rows before it returns the first.
func (s *sorter) Next(read func(*row.Item) error, item *row.Item) error {
	if !s.given {
		if err := s.takeAll(read); err != nil {
			return err
		}
		s.given = true
	}
	if s.file != nil {
		return s.merge(item)
	}
	if s.finished == len(s.rows) {
		return io.EOF
	}
	*item, s.rows[s.finished] = s.rows[s.finished].Item, sortedRow{}
	s.finished++
	return nil
}

func (s *sorter) takeAll(read func(*row.Item) error) error {
	var item row.Item
	for {
		err := read(&item)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		line := sortedRow{item, s.valueOf(item.Payload)}
		line.Payload = bytes.Clone(item.Payload)
		s.rows = append(s.rows, line)
		s.size += len(line.Key) + len(line.Payload) + len(line.Invalid) + len(line.by.text) + len(line.by.digits) + 128
		if s.size > s.memory {
			if err := s.spill(); err != nil {
				return err
			}
		}
	}
	if !s.found {
		return &row.InputError{Reason: "no item has a field " + row.Quote(s.field) + " that they could be sorted by"}
	}
	if s.file == nil {
		s.order()
		return nil
	}
	if err := s.spill(); err != nil {
		return err
	}
	return s.openParts()
}

func (s *sorter) order() {
	slices.SortStableFunc(s.rows, func(a, b sortedRow) int { return s.compare(&a.by, &b.by) })
}

func (s *sorter) spill() (err error) {
	if len(s.rows) == 0 {
		return nil
	}
	if s.file == nil {
		if s.file, err = s.spool.Begin(); err != nil {
			return err
		}
	}
	s.order()
	out, begin := bufio.NewWriterSize(s.file, sortBuffer), s.file.Size
	var line []byte
	for i := range s.rows {
		r := &s.rows[i]
		line = binary.AppendUvarint(line[:0], uint64(r.Line))
		for _, text := range [][]byte{[]byte(r.Key), r.Payload, []byte(r.Invalid)} {
			line = append(binary.AppendUvarint(line, uint64(len(text))), text...)
		}
		if _, err := out.Write(line); err != nil {
			return fmt.Errorf("sort the items in a file: %w", err)
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("sort the items in a file: %w", err)
	}
	s.parts = append(s.parts, sortedPart{begin, s.file.Size})
	clear(s.rows)
	s.rows, s.size = s.rows[:0], 0
	return nil
}

func (s *sorter) openParts() error {
	s.rows = nil
	for i, p := range s.parts {
		section := io.NewSectionReader(s.file, p.begin, p.end-p.begin)
		open := &openPart{number: i, from: bufio.NewReaderSize(section, sortBuffer)}
		if err := open.read(s); err != nil {
			return err
		}
		s.insert(open)
	}
	return nil
}

func (s *sorter) insert(part *openPart) {
	at, _ := slices.BinarySearchFunc(s.merging, part, func(a, b *openPart) int {
		return cmp.Or(s.compare(&a.row.by, &b.row.by), cmp.Compare(a.number, b.number))
	})
	s.merging = slices.Insert(s.merging, at, part)
}

func (s *sorter) merge(item *row.Item) error {
	if len(s.merging) == 0 {
		return io.EOF
	}
	least := s.merging[0]
	*item = least.row.Item
	s.merging = slices.Delete(s.merging, 0, 1)
	err := least.read(s)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		s.insert(least)
	}
	return err
}

func (s *sorter) Close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

type openPart struct {
	number int
	from   *bufio.Reader
	row    sortedRow
}

func (p *openPart) read(s *sorter) error {
	line, err := binary.ReadUvarint(p.from)
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	var texts [3][]byte
	for i := 0; i < len(texts) && err == nil; i++ {
		var size uint64
		if size, err = binary.ReadUvarint(p.from); err == nil {
			texts[i] = make([]byte, size)
			_, err = io.ReadFull(p.from, texts[i])
		}
	}
	if err != nil {
		return fmt.Errorf("read the sorted items: %w", err)
	}
	p.row = sortedRow{row.Item{Key: string(texts[0]), Payload: texts[1], Line: int(line), Invalid: string(texts[2])},
		s.valueOf(texts[1])}
	return nil
}

// decimal is an exact number of any size: sign × 0.digits × 10^point. The zero value is zero. Its memory is that of
// the number's text, for any exponent.
type decimal struct {
	sign   int
	digits string // without zeros at either end
	point  int64
}

// maxPoint bounds exponents: larger ones count as equal.
const maxPoint = 1 << 62

var decimalText = regexp.MustCompile(`^(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?$`)

// parseDecimal reads a number in JSON form; leading zeros are accepted too.
func parseDecimal(text string) (decimal, bool) {
	parts := decimalText.FindStringSubmatch(text)
	if parts == nil {
		return decimal{}, false
	}
	all := parts[2] + parts[3]
	leading := len(all) - len(strings.TrimLeft(all, "0"))
	d := decimal{sign: 1, digits: strings.Trim(all, "0")}
	if d.digits == "" {
		return decimal{}, true
	}
	if parts[1] == "-" {
		d.sign = -1
	}
	exponent, _ := strconv.ParseInt(parts[4], 10, 64) // none is 0, out of range is the nearest
	d.point = min(max(exponent, -maxPoint), maxPoint) + int64(len(parts[2])-leading)
	return d, true
}

func (d *decimal) compare(other *decimal) int {
	return cmp.Or(cmp.Compare(d.sign, other.sign),
		d.sign*cmp.Or(cmp.Compare(d.point, other.point), cmp.Compare(d.digits, other.digits)))
}
