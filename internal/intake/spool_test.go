package intake_test

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"

	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// Inputs that are kept concurrently share the room on the disk; who finds none is told what helps, and finds some when
// another is done. One that ends early leaves none taken.
func TestKeptInputsShareTheirRoom(t *testing.T) {
	t.Parallel()
	input := bytes.Repeat([]byte("0123456789abcdef"), 2<<20/16)
	inputs := intake.Spool{Dir: t.TempDir(), Room: intake.NewRoom(3<<20, nil)}
	broken := io.MultiReader(bytes.NewReader(input), &failing{})
	for range 3 {
		if _, err := inputs.Keep(broken); err == nil {
			t.Fatal("an input that ended early was kept")
		}
	}
	first, err := inputs.Keep(bytes.NewReader(input))
	testenv.NoError(t, err)
	_, err = inputs.Keep(bytes.NewReader(input))
	if _, full := errors.AsType[*intake.NoRoomError](err); !full || !strings.Contains(err.Error(), "3 MiB") ||
		!strings.Contains(err.Error(), "NDJSON") {
		t.Errorf("the second got %v", err)
	}
	testenv.Same(t, testenv.Must(inputs.Keep(strings.NewReader("id\n1\n")))(t).Size, 5, "one that is kept in memory")
	testenv.NoError(t, first.Close())
	again, err := inputs.Keep(bytes.NewReader(input))
	testenv.MustSame(t, err, nil, "when the first is done")
	if read, err := io.ReadAll(again.Reader()); err != nil || !bytes.Equal(read, input) {
		t.Errorf("%d bytes were kept of %d, %v", len(read), len(input), err)
	}
	testenv.NoError(t, again.Close())
}

// PROOF: who may do what, 19.
// The room is half of what is free when an input begins, and one user has half of that.
func TestRoomIsAShareOfWhatIsFree(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	free := int64(16 * mib)
	room := intake.NewRoom(100*mib, func() (int64, bool) { return free, true })
	keep := func(user string, size int) (*intake.Kept, error) {
		return intake.Spool{Dir: t.TempDir(), Room: room, User: user}.Keep(bytes.NewReader(make([]byte, size)))
	}
	refused := func(what string, err error, most int64, user string) {
		t.Helper()
		full, ok := errors.AsType[*intake.NoRoomError](err)
		if !ok || full.Most != most || full.User != user || !strings.Contains(err.Error(), user) {
			t.Errorf("%s: %v", what, err)
		}
	}
	first, err := keep("ann", 4*mib)
	testenv.NoError(t, err)
	free -= 4 * mib
	_, err = keep("ann", 2*mib)
	refused("more of the same user", err, 4*mib, "ann")
	second, err := keep("bob", 4*mib)
	testenv.MustSame(t, err, nil, "as much of another")
	free -= 4 * mib
	_, err = keep("cy", 2*mib)
	refused("more than there is room for", err, 8*mib, "")
	testenv.NoError(t, errors.Join(first.Close(), second.Close()))
	free = 4 * mib // others have written meanwhile
	_, err = keep("", 3*mib)
	refused("more than half of what is free", err, 2*mib, "")
	third, err := keep("", 2*mib)
	testenv.MustSame(t, err, nil, "half of what is free, of no one")
	testenv.NoError(t, third.Close())
}

// failing is a sender that goes away.
type failing struct{}

func (*failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// repeatReader yields a head once, and a body repeatedly.
type repeatReader struct {
	head, body, rest []byte
	left             int // bodies to come
}

func (r *repeatReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		switch {
		case r.head != nil:
			r.rest, r.head = r.head, nil
		case r.left == 0:
			return 0, io.EOF
		default:
			r.rest, r.left = r.body, r.left-1
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// stream makes 128 MB or more out of a head and a body.
func stream(head, body string) *repeatReader {
	return &repeatReader{head: []byte(head), body: []byte(body), left: 128<<20/len(body) + 1}
}

// TestMemoryIsFlat reads large streams and looks at the heap on the way. It is not parallel, for other tests' garbage
// would be counted.
//
//nolint:paralleltest // see above
func TestMemoryIsFlat(t *testing.T) {
	long := string(bytes.Repeat([]byte("x"), 300_000))
	tests := map[string]struct {
		in    func() io.Reader
		bad   bool // an error ends it early
		ratio int
	}{
		"csv": {in: func() io.Reader { return stream("id,a\n", "1,\""+long+"\n"+long+"\"\n") }},
		"ndjson": {
			in: func() io.Reader { return stream("", `{"id":1,"a":"`+long+`","b": "`+long+`"}`+"\n") },
		},
		"an unclosed quote": {in: func() io.Reader { return stream("id,a\n1,\"", long+"\n") }, bad: true},
		"one endless line":  {in: func() io.Reader { return stream("id,a\n1", ","+long) }, bad: true},
		"endless JSON":      {in: func() io.Reader { return stream(`{"id":1,"a":[`, `"`+long+`",`) }, bad: true},
		"blank lines": {
			in: func() io.Reader { return io.LimitReader(stream("id,a\n1,2\n", "\n\n\n\n"), 2<<20) },
		},
		"a bomb":        {in: func() io.Reader { return bomb(t) }, bad: true},
		"a bomb let in": {in: func() io.Reader { return bomb(t) }, ratio: 1000},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := intake.Open(test.in(), intake.Config{MaxRatio: test.ratio})
			testenv.NoError(t, err)
			base, peak := heap(), uint64(0)
			var item row.Item
			rows := 0
			for err = nil; err == nil; rows++ {
				err = r.Next(&item)
				if rows%100 == 0 {
					peak = max(peak, heap())
				}
			}
			if errors.Is(err, io.EOF) == test.bad {
				t.Errorf("ended with %v", err)
			}
			if peak = max(peak, heap()); peak > base+32<<20 {
				t.Errorf("the heap grew from %d to %d MB in %d rows", base>>20, peak>>20, rows)
			}
			runtime.KeepAlive(r)
		})
	}
}

// bomb is 128 MB of rows in little more than 500 KB.
func bomb(t *testing.T) io.Reader {
	t.Helper()
	var out bytes.Buffer
	w := testenv.Must(gzip.NewWriterLevel(&out, gzip.BestSpeed))(t)
	row := "1," + string(bytes.Repeat([]byte("x"), 300_000)) + "\n"
	testenv.Must(io.Copy(w, stream("id,a\n", row)))(t)
	testenv.NoError(t, w.Close())
	return &out
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
