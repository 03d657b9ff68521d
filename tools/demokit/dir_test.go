package demokit

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestDirBelongsToOneStory(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "demo")
	first := testenv.Must(OpenDir(path, "demo", time.Time{}))(t)
	var busy *BusyError
	if _, err := OpenDir(path, "demo", time.Time{}); !errors.As(err, &busy) {
		t.Errorf("a second story in the directory: got %v, want a BusyError", err)
	}
	testenv.NoError(t, os.MkdirAll(first.File(serversDir, "postgres"), 0o700))
	testenv.NoError(t, first.Close())
	_, err := os.Stat(first.File(serversDir))
	testenv.Is(t, err, os.ErrNotExist, "the servers' data after the story")
}

func TestDirIsUsedAgain(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	// A killed story left its servers' data, and the directory holds something of the person's.
	testenv.NoError(t, os.MkdirAll(filepath.Join(path, serversDir, "nats"), 0o700))
	testenv.NoError(t, os.WriteFile(filepath.Join(path, "mine.txt"), nil, 0o600))
	d := testenv.Must(OpenDir(path, "demo", time.Time{}))(t)
	_, err := os.Stat(d.File(serversDir))
	testenv.Is(t, err, os.ErrNotExist, "the old servers' data")
	testenv.NoError(t, d.Close())
	_, err = os.Stat(d.File("mine.txt"))
	testenv.Same(t, err, nil, "the person's own file")
}
