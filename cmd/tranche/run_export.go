package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

type runExport struct {
	Ref    string   `arg:"" name:"run" help:"An id, the beginning of one, a name, or last."`
	Format string   `enum:"ndjson,csv" default:"ndjson" help:"ndjson or csv." placeholder:"FORMAT"`
	State  []string `enum:"done,failed,missing" help:"Only items in this state; may stand more than once." placeholder:"STATE"`
	Out    string   `short:"o" help:"The file to write; standard output when absent." placeholder:"FILE"`
}

// Run exports. A file appears under its name only when it is whole.
func (r *runExport) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	if term.json && r.Format != "ndjson" {
		return &usageError{"--json and --format csv exclude each other"}
	}
	stream, err := cl.Export(ctx, r.Ref, r.Format, r.State)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	if r.Out == "" || r.Out == "-" {
		return copyStream(term.out, stream)
	}
	size, err := writeWhole(r.Out, stream)
	if err != nil {
		return err
	}
	if term.json {
		return term.document(map[string]any{"file": r.Out, "bytes": size})
	}
	term.note("wrote %s bytes to %s", count(size), r.Out)
	return nil
}

// writeWhole writes a file that only its owner may read, and puts it under its name when it is whole. What is there and
// is no plain file (a device, a pipe, a link) is written to, never replaced.
func writeWhole(name string, from io.Reader) (size int64, err error) {
	if info, err := os.Lstat(name); err == nil && !info.Mode().IsRegular() {
		return writeTo(name, from)
	}
	file, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return 0, fmt.Errorf("--out %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close(), os.Remove(file.Name()))
		}
	}()
	if size, err = io.Copy(file, from); err != nil {
		return size, brokenOff(err)
	}
	if err := file.Sync(); err != nil {
		return size, fmt.Errorf("--out %s: %w", name, err)
	}
	if err := os.Rename(file.Name(), name); err != nil {
		return size, fmt.Errorf("--out %s: %w", name, err)
	}
	return size, file.Close()
}

func writeTo(name string, from io.Reader) (size int64, err error) {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return 0, fmt.Errorf("--out %s: %w", name, err)
	}
	size, err = io.Copy(file, from)
	if err = errors.Join(err, file.Close()); err != nil {
		return size, fmt.Errorf("--out %s: %w", name, err)
	}
	return size, nil
}
