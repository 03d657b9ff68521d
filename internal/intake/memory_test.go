package intake_test

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"testing"

	"github.com/klauspost/compress/gzip"

	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// repeatReader yields a head once, and a body again and again.
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

// heap is what is live, garbage taken out.
func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
