package demo

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestDirBelongsToOneDemo(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "demo")
	first, err := openDir(path, time.Time{})
	must(t, err)
	var busy *BusyError
	if _, err := openDir(path, time.Time{}); !errors.As(err, &busy) {
		t.Errorf("a second demo in the directory: got %v, want a BusyError", err)
	}
	must(t, os.MkdirAll(first.file(serversDir, "postgres"), 0o700))
	must(t, first.close())
	if _, err := os.Stat(first.file(serversDir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the servers' data outlives the demo (%v)", err)
	}
}

func TestDirIsUsedAgain(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	// A killed demo left its servers' data, and the directory holds something of the person's.
	must(t, os.MkdirAll(filepath.Join(path, serversDir, "nats"), 0o700))
	must(t, os.WriteFile(filepath.Join(path, "mine.txt"), nil, 0o600))
	d, err := openDir(path, time.Time{})
	must(t, err)
	if _, err := os.Stat(d.file(serversDir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old servers' data is still there (%v)", err)
	}
	must(t, d.close())
	if _, err := os.Stat(d.file("mine.txt")); err != nil {
		t.Errorf("the person's own file: %v", err)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		config         Config
		accounts, pdfs int // 0 accounts: refused
	}{
		{Config{}, 100_000, 0},
		{Config{PDFs: DefaultPDFs}, 100_000, 2000},
		{Config{Accounts: 300, PDFs: DefaultPDFs}, 300, 300},
		{Config{PDFs: AllPDFs}, 100_000, 100_000},
		{Config{Accounts: -1}, 0, 0},
		{Config{Accounts: 299}, 0, 0},
		{Config{Accounts: 10_000_001}, 0, 0},
		{Config{PDFs: -2}, 0, 0},
	} {
		got, err := test.config.withDefaults()
		if (err != nil) != (test.accounts == 0) ||
			err == nil && (got.Accounts != test.accounts || got.PDFs != test.pdfs) {
			t.Errorf("%+v: %d accounts, %d PDFs, %v; want %d, %d", test.config, got.Accounts, got.PDFs, err,
				test.accounts, test.pdfs)
		}
	}
}
