package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// textFile is what a person wrote to have it applied.
type textFile struct {
	path string
	name string // of what stands in it, when it does not give itself one: the file's without its ending
	text string
}

// readText reads a file, or standard input for -. What is it called, for errors; more than limit bytes are the server's
// to refuse.
func readText(what, path string, stdin io.Reader, limit int64) (textFile, error) {
	base := filepath.Base(path)
	f := textFile{path: path, name: strings.TrimSuffix(base, filepath.Ext(base))}
	from := stdin
	if path == "-" {
		f.path, f.name = "standard input", ""
	} else {
		file, err := os.Open(path)
		if err != nil {
			return f, &usageError{fmt.Sprintf("%s %s: %v", what, path, errors.Unwrap(err))}
		}
		defer func() { _ = file.Close() }()
		from = file
	}
	text, err := io.ReadAll(io.LimitReader(from, limit+1))
	switch {
	case err != nil:
		return f, &usageError{fmt.Sprintf("%s %s: %v", what, f.path, cmp.Or(errors.Unwrap(err), err))}
	case len(text) == 0:
		return f, &usageError{fmt.Sprintf("%s %s is empty; it must be YAML or JSON", what, f.path)}
	}
	f.text = string(text)
	return f, nil
}
