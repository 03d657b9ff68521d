package intake_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/intake"
)

// Inputs that are kept at once share the room on the disk; who finds none is told what helps, and finds some when
// another is done. One that breaks off leaves none taken.
func TestKeptInputsShareTheirRoom(t *testing.T) {
	t.Parallel()
	input := bytes.Repeat([]byte("0123456789abcdef"), 2<<20/16)
	spool := intake.Spool{Dir: t.TempDir(), Room: intake.NewSpoolRoom(3 << 20)}
	broken := io.MultiReader(bytes.NewReader(input), &failing{})
	for range 3 {
		if _, err := spool.Keep(broken); err == nil {
			t.Fatal("an input that broke off was kept")
		}
	}
	first, err := spool.Keep(bytes.NewReader(input))
	if err != nil {
		t.Fatal(err)
	}
	_, err = spool.Keep(bytes.NewReader(input))
	if _, full := errors.AsType[*intake.NoRoomError](err); !full || !strings.Contains(err.Error(), "3 MiB") ||
		!strings.Contains(err.Error(), "NDJSON") {
		t.Errorf("the second got %v", err)
	}
	if small, err := spool.Keep(strings.NewReader("id\n1\n")); err != nil || small.Size != 5 {
		t.Errorf("one that is kept in memory: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	again, err := spool.Keep(bytes.NewReader(input))
	if err != nil {
		t.Fatalf("when the first is done: %v", err)
	}
	if read, err := io.ReadAll(again.Reader()); err != nil || !bytes.Equal(read, input) {
		t.Errorf("%d bytes were kept of %d, %v", len(read), len(input), err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// failing is a sender that goes away.
type failing struct{}

func (*failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
