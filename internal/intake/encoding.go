package intake

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"

	"github.com/tranchehq/tranche/internal/intake/row"
)

// encodings are those that are read, by their names.
func encodings() map[string]encoding.Encoding {
	return map[string]encoding.Encoding{
		"utf-8": nil, "latin-1": charmap.ISO8859_1, "windows-1252": charmap.Windows1252,
		"utf-16":   unicode.UTF16(unicode.LittleEndian, unicode.UseBOM),
		"utf-16le": unicode.UTF16(unicode.LittleEndian, unicode.IgnoreBOM),
		"utf-16be": unicode.UTF16(unicode.BigEndian, unicode.IgnoreBOM),
	}
}

// Encodings lists the names that Config.Encoding may have.
func Encodings() []string { return slices.Sorted(maps.Keys(encodings())) }

// decode has a text in UTF-8, from the encoding that is named or that a byte order mark tells. The note says what was
// found out; what would be a guess is refused, with the guess.
func decode(src *bufio.Reader, name string) (out *bufio.Reader, note string, err error) {
	start, err := src.Peek(foreignBytes)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, "", readError(0, err)
	}
	if name == "" {
		marked := bytes.HasPrefix(start, []byte("\xff\xfe")) || bytes.HasPrefix(start, []byte("\xfe\xff"))
		switch guess := looksLikeUTF16(start); {
		case marked:
			name, note = "utf-16", "the input was read as UTF-16, as its byte order mark says"
		case guess != "":
			return nil, "", &row.InputError{Reason: "the input looks like UTF-16 without a byte order mark; if it is, say so: " +
				"encoding=" + guess + " (--encoding " + guess + "), or save it as UTF-8"}
		}
	}
	from := encodings()[name]
	if from == nil {
		return src, "", nil
	}
	return bufio.NewReaderSize(&strictReader{from: transform.NewReader(src, from.NewDecoder()), name: name},
		bufferBytes), note, nil
}

// looksLikeUTF16 guesses by the zeros that Latin letters have in it.
func looksLikeUTF16(start []byte) string {
	var zeros [2]int
	for i, b := range start {
		if b == 0 {
			zeros[i%2]++
		}
	}
	switch {
	case zeros[1] >= 3 && zeros[0] == 0:
		return "utf-16le"
	case zeros[0] >= 3 && zeros[1] == 0:
		return "utf-16be"
	default:
		return ""
	}
}

// strictReader refuses what a decoder could make nothing of: it writes U+FFFD for that.
type strictReader struct {
	from io.Reader
	name string
	seen int // bytes of U+FFFD that were the last ones
}

func (s *strictReader) Read(p []byte) (int, error) {
	n, err := s.from.Read(p)
	const unknown = "\uFFFD"
	for _, b := range p[:n] {
		switch b {
		case unknown[s.seen]:
			s.seen++
		case unknown[0]:
			s.seen = 1
		default:
			s.seen = 0
		}
		if s.seen == len(unknown) {
			s.seen = 0
			return 0, &row.InputError{Reason: "the input is not " + s.name + ": something in it stands for no character; give " +
				"another encoding (" + strings.Join(Encodings(), ", ") + ")"}
		}
	}
	return n, err
}
