package intake

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"

	"github.com/tranchehq/tranche/internal/intake/row"
)

// maxWindow is the maximum zstd window: enough for every level up to 20 without --long.
const maxWindow = 32 << 20

func decompress(r io.Reader, cfg Config) (*bufio.Reader, error) {
	source := &sourceReader{r: r}
	packed := bufio.NewReaderSize(source, bufferBytes)
	start, err := packed.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, readError(0, err)
	}
	kind, open := compression(start)
	if open == nil {
		return packed, nil
	}
	unpacked := &unpackReader{kind: kind, source: source, limit: cfg.MaxDecompressed, ratio: cfg.MaxRatio}
	if unpacked.r, err = open(packed); err != nil {
		return nil, unpacked.explain(err)
	}
	return bufio.NewReaderSize(unpacked, bufferBytes), nil
}

func compression(start []byte) (kind string, open func(*bufio.Reader) (io.Reader, error)) {
	switch {
	case bytes.HasPrefix(start, []byte{0x1f, 0x8b}):
		return "gzip", openGzip
	case bytes.Equal(start, []byte{0x28, 0xb5, 0x2f, 0xfd}), isSkippable(start):
		return "zstd", openZstd
	default:
		return "", nil
	}
}

func isSkippable(start []byte) bool {
	return len(start) == 4 && start[0]&0xf0 == 0x50 && bytes.Equal(start[1:], []byte{0x2a, 0x4d, 0x18})
}

func openGzip(r *bufio.Reader) (io.Reader, error) {
	g := &gzipReader{src: r}
	return g, g.next()
}

// gzipReader reads members one at a time, skipping zeros between and after them: tapes and block devices pad with
// zeros.
type gzipReader struct {
	src    *bufio.Reader
	member gzip.Reader
}

func (g *gzipReader) Read(p []byte) (int, error) {
	n, err := g.member.Read(p)
	for n == 0 && errors.Is(err, io.EOF) {
		if err := g.next(); err != nil {
			return 0, err
		}
		n, err = g.member.Read(p)
	}
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil // the end of this member
	}
	return n, err
}

func (g *gzipReader) next() error {
	for b := byte(0); b == 0; {
		var err error
		if b, err = g.src.ReadByte(); err != nil {
			return err
		}
	}
	if err := g.src.UnreadByte(); err != nil {
		return err
	}
	err := g.member.Reset(g.src)
	g.member.Multistream(false)
	return err
}

// openZstd decompresses in the caller's goroutine: a decoder with more goroutines would need closing.
func openZstd(r *bufio.Reader) (io.Reader, error) {
	return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(maxWindow))
}

// sourceReader counts bytes and remembers read errors, so they are not mistaken for damaged data.
type sourceReader struct {
	r    io.Reader
	seen int64
	err  error
}

func (s *sourceReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.seen += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// unpackReader counts unpacked bytes and turns decompressor errors into an InputError.
type unpackReader struct {
	kind   string
	r      io.Reader
	source *sourceReader
	limit  int64 // 0: no limit
	ratio  int
	seen   int64
}

func (u *unpackReader) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	u.seen += int64(n)
	switch {
	case u.limit > 0 && u.seen > u.limit:
		return 0, &row.InputError{Reason: fmt.Sprintf(
			"the %s data unpacks to more than the limit of %d bytes; send it in parts, or raise the limit",
			u.kind, u.limit)}
	case u.seen > ratioFrom && u.seen/int64(u.ratio) > u.source.seen:
		return 0, &row.InputError{Reason: fmt.Sprintf("the %s data unpacks to more than %d times its size, as no list of "+
			"items does; check the file, and send it unpacked if it is right", u.kind, u.ratio)}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return n, u.explain(err)
	}
	return n, err
}

func (u *unpackReader) explain(err error) error {
	switch {
	case u.source.err != nil:
		return u.source.err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &row.InputError{Reason: "the " + u.kind + " data is cut short; send the whole file", Err: err}
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return &row.InputError{Reason: "the zstd data needs a window above " + row.Size(maxWindow) +
			"; compress it with level 19 or lower and without --long", Err: err}
	default:
		return &row.InputError{Reason: fmt.Sprintf(
			"the %s data is damaged (%v); check the file with %s -t and send it again", u.kind, err, u.kind), Err: err}
	}
}

const foreignBytes = 10

// refuseForeign names file types that are mistaken for CSV, by the start of the unpacked input. Each magic number
// has a byte that no text holds, or is long, so no header line matches.
func refuseForeign(start []byte) error {
	var reason string
	switch at := func(magic string) bool { return bytes.HasPrefix(start, []byte(magic)) }; {
	case at("PK\x03\x04"):
		reason = "the input is a zip archive or a spreadsheet; unpack it, or save the sheet as CSV (UTF-8)"
	case at("\xff\xfe"), at("\xfe\xff"):
		reason = "the input is UTF-16, and not what its encoding was said to be; leave that out"
	case at("\x1f\x8b"), at("\x28\xb5\x2f\xfd"):
		reason = "the input is compressed twice; unpack it once"
	case at("BZh") && bytes.HasSuffix(start, []byte("1AY&SY")):
		reason = "the input is bzip2, which is not read; unpack it, or use gzip or zstd"
	case at("\xfd7zXZ\x00"):
		reason = "the input is xz, which is not read; unpack it, or use gzip or zstd"
	case at("PAR1\x15"):
		reason = "the input is Parquet, which is not read; export it as CSV or NDJSON"
	default:
		return nil
	}
	return &row.InputError{Reason: reason}
}

func encodings() map[string]encoding.Encoding {
	return map[string]encoding.Encoding{
		"utf-8": nil, "latin-1": charmap.ISO8859_1, "windows-1252": charmap.Windows1252,
		"utf-16":   unicode.UTF16(unicode.LittleEndian, unicode.UseBOM),
		"utf-16le": unicode.UTF16(unicode.LittleEndian, unicode.IgnoreBOM),
		"utf-16be": unicode.UTF16(unicode.BigEndian, unicode.IgnoreBOM),
	}
}

// Encodings lists the values of Config.Encoding.
func Encodings() []string { return slices.Sorted(maps.Keys(encodings())) }

// decode converts text to UTF-8 from the named encoding or the one its byte order mark shows. The note reports what
// was detected. A mere guess is refused, with the guess in the error.
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
	if bytes.HasPrefix(start, []byte("\xef\xbb\xbf")) {
		return nil, "", &row.InputError{Reason: "the input begins with the byte order mark of UTF-8, and its encoding was " +
			"said to be " + name + "; leave the encoding out"}
	}
	return bufio.NewReaderSize(&strictReader{from: transform.NewReader(src, from.NewDecoder()), name: name},
		bufferBytes), note, nil
}

// looksLikeUTF16 guesses by the zero bytes of Latin letters.
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

// strictReader refuses input that a decoder replaced by U+FFFD.
type strictReader struct {
	from io.Reader
	name string
	seen int // trailing bytes that may begin U+FFFD
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
			return 0, &row.InputError{Reason: "the input is not " + s.name + ": it has bytes that are not a character; give " +
				"another encoding (" + strings.Join(Encodings(), ", ") + ")"}
		}
	}
	return n, err
}
