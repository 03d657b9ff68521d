package yearend

import (
	"bytes"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"golang.org/x/text/encoding/charmap"
)

// Labels of the numbers that Read finds.
const (
	labelOpening = "Opening balance"
	labelIn      = "Money in"
	labelOut     = "Money out"
	labelClosing = "Closing balance"
	labelTotal   = "Total"
	labelAccount = "Account"
)

// maxPage bounds a decompressed page.
const maxPage = 4 << 20

// Printed holds the figures of a statement; amounts are in cents.
type Printed struct {
	Account                              int32
	Movements, Opening, In, Out, Closing int64
}

// Read returns the figures of a statement drawn by [Parts.PDF], from the text on its page.
func Read(pdf []byte) (Printed, error) {
	texts, err := Texts(pdf)
	if err != nil {
		return Printed{}, err
	}
	var p Printed
	amounts := map[string]*int64{labelOpening: &p.Opening, labelIn: &p.In, labelOut: &p.Out, labelClosing: &p.Closing}
	var total, account bool
	for i := 0; i+1 < len(texts); i++ {
		if into := amounts[texts[i]]; into != nil {
			if cents, ok := parseAmount(texts[i+1]); ok { // it is also a column's heading
				*into = cents
				delete(amounts, texts[i])
			}
		}
		switch texts[i] {
		case labelTotal:
			p.Movements, total = parseCount(texts[i+1])
		case labelAccount:
			p.Account, account = parseAccount(texts[i+1])
		}
	}
	if len(amounts) > 0 || !total || !account {
		return p, errors.New("not all the figures of a statement are on the page")
	}
	return p, nil
}

func parseCount(text string) (int64, bool) {
	if text == minus { // printed for zero
		return 0, true
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(text, ",", ""), 10, 64)
	return n, err == nil
}

// parseAccount returns the account from the end of its number: HS12 0150 0000 4711 is account 4711.
func parseAccount(number string) (int32, bool) {
	const digits = len("0000 0000")
	if len(number) < digits {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(number[len(number)-digits:], " ", ""), 10, 32)
	return int32(n), err == nil
}

func parseAmount(text string) (int64, bool) {
	digits, negative := strings.CutPrefix(text, minus)
	whole, cents, ok := strings.Cut(strings.ReplaceAll(digits, ",", ""), ".")
	if !ok || len(cents) != 2 {
		return 0, false
	}
	n, err := strconv.ParseInt(whole+cents, 10, 64)
	if negative {
		n = -n
	}
	return n, err == nil
}

// Texts returns the texts on the pages of a PDF drawn by this package, in drawing order.
func Texts(pdf []byte) ([]string, error) {
	if !bytes.HasPrefix(pdf, []byte("%PDF-")) {
		return nil, errors.New("not a PDF")
	}
	var texts []string
	for {
		_, rest, ok := bytes.Cut(pdf, []byte(">>\nstream\n"))
		if !ok {
			return texts, nil
		}
		stream, rest, ok := bytes.Cut(rest, []byte("\nendstream"))
		if !ok {
			return nil, errors.New("the PDF is truncated")
		}
		page, err := unpack(stream)
		if err != nil {
			return nil, fmt.Errorf("unpack a page: %w", err)
		}
		texts = append(texts, shown(page)...)
		pdf = rest
	}
}

func unpack(stream []byte) ([]byte, error) {
	z, err := zlib.NewReader(bytes.NewReader(stream))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(z, maxPage))
}

// shown returns the operands of Tj: strings in parentheses, with backslash escapes.
func shown(page []byte) (texts []string) {
	for line := range bytes.Lines(page) {
		end := bytes.LastIndex(line, []byte(") Tj"))
		begin := bytes.IndexByte(line, '(')
		if begin < 0 || end < begin {
			continue
		}
		text := strings.NewReplacer(`\(`, "(", `\)`, ")", `\\`, `\`).Replace(string(line[begin+1 : end]))
		text, _ = charmap.Windows1252.NewDecoder().String(text) // it never fails
		texts = append(texts, text)
	}
	return texts
}
