package systest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
)

const (
	// brakeSuffix makes of a ledger's name that of the file which says how long it may get; without one, it may be of any
	// length.
	brakeSuffix = ".most"
	// longestLine is that of an execution, in bytes, with an ordinal of five digits.
	longestLine = 45
	// inHand is how many items are out at the most: in part carried out, or about to be carried out again.
	inHand = 2 * 8 * chunk
)

// heed waits while the ledger is as long as the test lets it get, unless the process is told to end. What a run still
// has to do then does not depend on how fast the test is.
func heed(told context.Context, ledger *os.File) error {
	for told.Err() == nil {
		text, err := os.ReadFile(ledger.Name() + brakeSuffix)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		info, failed := ledger.Stat()
		most, unreadable := strconv.ParseInt(string(text), 10, 64)
		if err := errors.Join(err, failed, unreadable); err != nil {
			return fmt.Errorf("how long the ledger may get: %w", err)
		}
		if info.Size() < most {
			return nil
		}
		_ = rest(told) // once told to end, it ends
	}
	return nil
}

// allow lets services carry out so many items more than they have, and what is in their hands besides, until it is
// called again.
func (w *world) allow(items int) {
	w.Helper()
	var size int64
	info, err := os.Stat(w.ledger)
	if err == nil {
		size = info.Size()
	} else if !errors.Is(err, os.ErrNotExist) {
		w.Fatal(err)
	}
	name := w.ledger + brakeSuffix
	err = os.WriteFile(name+".new", strconv.AppendInt(nil, size+int64(items+inHand)*longestLine, 10), 0o600)
	if err == nil {
		err = os.Rename(name+".new", name)
	}
	if err != nil {
		w.Fatal(err)
	}
}

// allowAll lets them carry out the rest.
func (w *world) allowAll() {
	w.Helper()
	if err := os.Remove(w.ledger + brakeSuffix); err != nil {
		w.Fatal(err)
	}
}
