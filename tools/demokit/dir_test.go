package demokit

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestDirBelongsToOneStory(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "demo")
	first, err := OpenDir(path, "demo", time.Time{})
	must(t, err)
	var busy *BusyError
	if _, err := OpenDir(path, "demo", time.Time{}); !errors.As(err, &busy) {
		t.Errorf("a second story in the directory: got %v, want a BusyError", err)
	}
	must(t, os.MkdirAll(first.File(serversDir, "postgres"), 0o700))
	must(t, first.Close())
	if _, err := os.Stat(first.File(serversDir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the servers' data outlives the story (%v)", err)
	}
}

func TestDirIsUsedAgain(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	// A killed story left its servers' data, and the directory holds something of the person's.
	must(t, os.MkdirAll(filepath.Join(path, serversDir, "nats"), 0o700))
	must(t, os.WriteFile(filepath.Join(path, "mine.txt"), nil, 0o600))
	d, err := OpenDir(path, "demo", time.Time{})
	must(t, err)
	if _, err := os.Stat(d.File(serversDir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old servers' data is still there (%v)", err)
	}
	must(t, d.Close())
	if _, err := os.Stat(d.File("mine.txt")); err != nil {
		t.Errorf("the person's own file: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
