package intake_test

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func gzipped(t testing.TB, in []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	testenv.Must(w.Write(in))(t)
	testenv.NoError(t, w.Close())
	return out.Bytes()
}

func zstandard(t testing.TB, in []byte, options ...zstd.EOption) []byte {
	t.Helper()
	var out bytes.Buffer
	w := testenv.Must(zstd.NewWriter(&out, append(options, zstd.WithEncoderConcurrency(1))...))(t)
	testenv.Must(w.Write(in))(t)
	testenv.NoError(t, w.Close())
	return out.Bytes()
}

// noise is CSV that does not compress to nothing, so that cutting it short cuts rows.
func noise(rows int) []byte {
	var b strings.Builder
	b.WriteString("id,a\n")
	state := uint64(1)
	for i := range rows {
		state = state*6364136223846793005 + 1442695040888963407
		b.WriteString(strings.Repeat("x", i%7))
		for digit := state; digit > 0; digit /= 26 {
			b.WriteByte('a' + byte(digit%26))
		}
		b.WriteString(",1\n")
	}
	return []byte(b.String())
}

func TestCompressed(t *testing.T) {
	t.Parallel()
	plain := []byte("\uFEFFid,a\n1,x\n2,y\n")
	want := []parsed{{"1", `{"id":"1","a":"x"}`, 2}, {"2", `{"id":"2","a":"y"}`, 3}}
	skippable := append([]byte{0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4}, zstandard(t, plain)...)
	tests := map[string][]byte{
		"gzip":           gzipped(t, plain),
		"gzip in two":    append(gzipped(t, plain[:10]), gzipped(t, plain[10:])...),
		"gzip and zeros": append(gzipped(t, plain), make([]byte, 100_000)...),
		"gzip, zeros, gzip": slices.Concat(gzipped(t, plain[:10]), make([]byte, 512), gzipped(t, nil),
			gzipped(t, plain[10:]), make([]byte, 7)),
		"zstd":             zstandard(t, plain),
		"zstd in two":      append(zstandard(t, plain[:10]), zstandard(t, plain[10:])...),
		"zstd, skip frame": skippable,
	}
	for name, in := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := testenv.Must(readAll(bytes.NewReader(in), intake.Config{}))(t)
			checkRows(t, got, want)
		})
	}
}

func TestBrokenCompression(t *testing.T) {
	t.Parallel()
	plain := noise(20000)
	gz, zst := gzipped(t, plain), zstandard(t, plain)
	wide := zstandard(t, bytes.Repeat(plain, 4), zstd.WithWindowSize(64<<20), zstd.WithSingleSegment(false))
	tests := map[string]struct {
		in      []byte
		cfg     intake.Config
		want    string
		partial bool // some rows come first, so the error names a line
	}{
		"gzip, only the magic":  {gz[:4], intake.Config{}, "the gzip data is cut short; send the whole file", false},
		"gzip, bad header":      {[]byte("\x1f\x8b and then text"), intake.Config{}, "the gzip data is damaged", false},
		"gzip, cut short":       {gz[:len(gz)/2], intake.Config{}, "the gzip data is cut short; send the whole file", true},
		"gzip, without its end": {gz[:len(gz)-4], intake.Config{}, "the gzip data is cut short; send the whole file", true},
		"gzip, damaged":         {damaged(gz, len(gz)-8), intake.Config{}, "the gzip data is damaged", true},
		"gzip, text behind it":  {append(bytes.Clone(gz), "hello"...), intake.Config{}, "the gzip data is", true},
		"gzip, text behind zeros": {append(append(bytes.Clone(gz), 0, 0), "hello"...), intake.Config{}, "the gzip data is",
			true},
		"zstd, only the magic": {zst[:4], intake.Config{}, "the zstd data is cut short; send the whole file", false},
		"zstd, cut short":      {zst[:len(zst)/2], intake.Config{}, "the zstd data is cut short; send the whole file", true},
		"zstd, damaged":        {damaged(zst, len(zst)-4), intake.Config{}, "the zstd data is damaged", true},
		"zstd, a large window": {wide, intake.Config{}, "the zstd data needs a window above 32 MiB", false},
		"twice":                {gzipped(t, zst), intake.Config{}, "the input is compressed twice; unpack it once", false},
		"over the limit": {
			gz, intake.Config{MaxDecompressed: 100_000}, "the gzip data unpacks to more than the limit of 100000 bytes", true,
		},
		"nothing in it": {gzipped(t, nil), intake.Config{}, "the input is empty", false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rows, err := readAll(bytes.NewReader(test.in), test.cfg)
			var whole *row.InputError
			if !errors.As(err, &whole) || !strings.HasPrefix(whole.Reason, test.want) {
				t.Fatalf("got %v, want an InputError: %s", err, test.want)
			}
			if test.partial != (whole.Line > 0) || whole.Line < len(rows) {
				t.Errorf("%d rows, then %v", len(rows), err)
			}
		})
	}
}

// damaged turns over a byte of the checksum, which tells for sure; damage elsewhere can look like a broken row first.
func damaged(in []byte, at int) []byte {
	out := bytes.Clone(in)
	out[at] ^= 0x5a
	return out
}

func TestWithinTheLimitOfDecompression(t *testing.T) {
	t.Parallel()
	plain := noise(1000)
	rows := testenv.Must(readAll(bytes.NewReader(gzipped(t, plain)), intake.Config{MaxDecompressed: int64(len(plain))}))(t)
	testenv.Same(t, len(rows), 1000, "rows")
}

func TestReadErrorInsideCompression(t *testing.T) {
	t.Parallel()
	broken := errors.New("the line went dead")
	gz := gzipped(t, noise(20000))
	in := io.MultiReader(bytes.NewReader(gz[:len(gz)/2]), failingReader{broken})
	_, err := readAll(in, intake.Config{})
	var whole *row.InputError
	if !errors.Is(err, broken) || errors.As(err, &whole) {
		t.Errorf("got %v, want the reader's own error", err)
	}
}

type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }

// PROOF: who may do what, 19.
// A bomb of blank lines is abandoned long before anybody has read through it; what packs well but not madly is taken.
func TestABombIsGivenUp(t *testing.T) {
	t.Parallel()
	head, blank := []byte("id,a\n1,2\n"), bytes.Repeat([]byte("\n"), 64<<20)
	well := stream("id,a\n", "1,"+strings.Repeat("as ever ", 10)+"\n")
	well.left = 9 << 20 / len(well.body)
	good := testenv.Must(io.ReadAll(well))(t)
	for name, pack := range map[string]func([]byte) []byte{
		"gzip": func(in []byte) []byte { return gzipped(t, in) },
		"zstd": func(in []byte) []byte { return zstandard(t, in) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := readAll(bytes.NewReader(pack(append(bytes.Clone(head), blank...))), intake.Config{})
			var whole *row.InputError
			if !errors.As(err, &whole) || !strings.Contains(whole.Reason, "more than 200 times its size") ||
				whole.Line == 0 || whole.Line > 20<<20 {
				t.Errorf("got %v; want an end at the ratio", err)
			}
			_, err = readAll(bytes.NewReader(pack(head)), intake.Config{MaxRatio: 1})
			testenv.Same(t, err, nil, "a small one")
			packs := len(good) / len(pack(good))
			_, err = readAll(bytes.NewReader(pack(good)), intake.Config{MaxRatio: 2 * packs})
			testenv.Same(t, err, nil, "rows that pack %d times", packs)
		})
	}
}
