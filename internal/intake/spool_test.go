package intake_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// Inputs that are kept at once share the room on the disk; who finds none is told what helps, and finds some when
// another is done. One that breaks off leaves none taken.
func TestKeptInputsShareTheirRoom(t *testing.T) {
	t.Parallel()
	input := bytes.Repeat([]byte("0123456789abcdef"), 2<<20/16)
	inputs := intake.Spool{Dir: t.TempDir(), Room: intake.NewRoom(3<<20, nil)}
	broken := io.MultiReader(bytes.NewReader(input), &failing{})
	for range 3 {
		if _, err := inputs.Keep(broken); err == nil {
			t.Fatal("an input that broke off was kept")
		}
	}
	first, err := inputs.Keep(bytes.NewReader(input))
	testenv.NoError(t, err)
	_, err = inputs.Keep(bytes.NewReader(input))
	if _, full := errors.AsType[*intake.NoRoomError](err); !full || !strings.Contains(err.Error(), "3 MiB") ||
		!strings.Contains(err.Error(), "NDJSON") {
		t.Errorf("the second got %v", err)
	}
	if small, err := inputs.Keep(strings.NewReader("id\n1\n")); err != nil || small.Size != 5 {
		t.Errorf("one that is kept in memory: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	again, err := inputs.Keep(bytes.NewReader(input))
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
	if err != nil {
		t.Fatalf("as much of another: %v", err)
	}
	free -= 4 * mib
	_, err = keep("cy", 2*mib)
	refused("more than there is room for", err, 8*mib, "")
	if err := errors.Join(first.Close(), second.Close()); err != nil {
		t.Error(err)
	}
	free = 4 * mib // others have written meanwhile
	_, err = keep("", 3*mib)
	refused("more than half of what is free", err, 2*mib, "")
	third, err := keep("", 2*mib)
	if err != nil {
		t.Fatalf("half of what is free, of no one: %v", err)
	}
	if err := third.Close(); err != nil {
		t.Error(err)
	}
}

// failing is a sender that goes away.
type failing struct{}

func (*failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
