package bitfield

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// MaxGroup is the largest group number, a PostgreSQL integer.
const MaxGroup = math.MaxInt32

// ErrItemID is wrapped by all errors about item IDs.
var ErrItemID = errors.New("bitfield: not an item id")

// ItemID identifies an item of a tracked batch. Its text is batch:group:index, a UUID and two decimal numbers:
//
//	0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d58:12:8191
//
// A client that knows its groups' sizes can compute all IDs. Each ID has exactly one text (lower case, no leading
// zeros).
type ItemID struct {
	Batch [16]byte // a UUID
	Group int      // 0 to MaxGroup
	Index int      // the item's bit in its group, 0 to Size-1
}

// ItemIDError locates the error in an invalid item ID. It wraps ErrItemID.
type ItemIDError struct {
	Text    string // the input
	At      int    // index of the invalid byte; len(Text) if it ends too early
	Problem string // what is wrong and what is expected
}

// maxQuoted bounds how much of an invalid text an error quotes.
const maxQuoted = 64

func (e *ItemIDError) Error() string {
	text := e.Text
	if len(text) > maxQuoted {
		text = text[:maxQuoted]
		return fmt.Sprintf("item id %q… (%d bytes): at character %d: %s", text, len(e.Text), e.At+1, e.Problem)
	}
	return fmt.Sprintf("item id %q: at character %d: %s", text, e.At+1, e.Problem)
}

func (e *ItemIDError) Unwrap() error { return ErrItemID }

// uuidLen is the length of a UUID's text.
const uuidLen = 36

// String returns batch:group:index.
func (id ItemID) String() string { return string(id.append(make([]byte, 0, uuidLen+16))) }

// AppendText appends the text. Numbers out of range are an error.
func (id ItemID) AppendText(b []byte) ([]byte, error) {
	if id.Group < 0 || id.Group > MaxGroup {
		return b, fmt.Errorf("%w: group %d is not within 0 to %d", ErrItemID, id.Group, MaxGroup)
	}
	if id.Index < 0 || id.Index >= Size {
		return b, fmt.Errorf("%w: index %d is not within 0 to %d", ErrItemID, id.Index, Size-1)
	}
	return id.append(b), nil
}

// MarshalText encodes the ID as text, for JSON strings and map keys.
func (id ItemID) MarshalText() ([]byte, error) { return id.AppendText(nil) }

// UnmarshalText decodes the output of MarshalText.
func (id *ItemID) UnmarshalText(b []byte) error {
	parsed, err := ParseItemID(string(b))
	if err != nil {
		return err
	}
	*id = parsed
	return nil
}

func (id ItemID) append(b []byte) []byte {
	start := 0
	for _, end := range [...]int{4, 6, 8, 10, 16} {
		if start > 0 {
			b = append(b, '-')
		}
		b = hex.AppendEncode(b, id.Batch[start:end])
		start = end
	}
	b = strconv.AppendInt(append(b, ':'), int64(id.Group), 10)
	return strconv.AppendInt(append(b, ':'), int64(id.Index), 10)
}

// ParseItemID parses an ID's text, exactly as String writes it. Errors are *ItemIDError.
func ParseItemID(text string) (ItemID, error) {
	p := itemIDParser{text: text}
	var id ItemID
	p.uuid(&id.Batch)
	p.colon("group")
	id.Group = int(p.number("group", MaxGroup))
	p.colon("index")
	id.Index = int(p.number("index", Size-1))
	if p.err == nil && p.at < len(text) {
		p.fail("the id must end after its index")
	}
	if p.err != nil {
		return ItemID{}, p.err
	}
	return id, nil
}

// itemIDParser reads from left to right and stops at its first error.
type itemIDParser struct {
	text string
	at   int
	err  error
}

func (p *itemIDParser) fail(problem string) {
	if p.err == nil {
		p.err = &ItemIDError{Text: p.text, At: p.at, Problem: problem}
	}
}

// peek returns the next byte, or 0 at the end; valid IDs contain no 0.
func (p *itemIDParser) peek() byte {
	if p.err != nil || p.at == len(p.text) {
		return 0
	}
	return p.text[p.at]
}

func (p *itemIDParser) uuid(into *[16]byte) {
	const want = "want a UUID like 0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d58, in lower case"
	for digits := 0; p.at < uuidLen && p.err == nil; p.at++ {
		c := p.peek()
		if p.at == 8 || p.at == 13 || p.at == 18 || p.at == 23 { // its dashes
			if c != '-' {
				p.fail(want)
				return
			}
			continue
		}
		nibble, ok := hexDigit(c)
		if !ok {
			p.fail(want)
			return
		}
		into[digits/2] = into[digits/2]<<4 | nibble
		digits++
	}
}

func hexDigit(c byte) (value byte, ok bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	}
	return 0, false
}

func (p *itemIDParser) colon(before string) {
	if p.peek() != ':' {
		p.fail("want a colon and then the " + before)
		return
	}
	p.at++
}

func (p *itemIDParser) number(name string, limit int64) int64 {
	start, n := p.at, int64(0)
	for c := p.peek(); '0' <= c && c <= '9'; c = p.peek() {
		if p.at > start && p.text[start] == '0' {
			p.at = start
			p.fail("the " + name + " has a leading zero")
			return 0
		}
		if n = n*10 + int64(c-'0'); n > limit {
			p.at = start
			p.fail("the " + name + " is above " + strconv.FormatInt(limit, 10))
			return 0
		}
		p.at++
	}
	if p.at == start {
		p.fail("want the " + name + ", a decimal number")
	}
	return n
}
