package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// TextFile is what a person wrote to have it applied.
type TextFile struct {
	Path string
	Name string // of what stands in it, when it does not give itself one: the file's without its ending
	Text string
}

// ReadText reads a file, or standard input for -. What is it called, for errors; more than limit bytes are the server's
// to refuse.
func ReadText(what, path string, stdin io.Reader, limit int64) (TextFile, error) {
	base := filepath.Base(path)
	f := TextFile{Path: path, Name: strings.TrimSuffix(base, filepath.Ext(base))}
	from := stdin
	if path == "-" {
		f.Path, f.Name = "standard input", ""
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
		return f, &usageError{fmt.Sprintf("%s %s: %v", what, f.Path, cmp.Or(errors.Unwrap(err), err))}
	case len(text) == 0:
		return f, &usageError{fmt.Sprintf("%s %s is empty; it must be YAML or JSON", what, f.Path)}
	}
	f.Text = string(text)
	return f, nil
}

// Explain names the file, and the line in it, when the server refused the file for what stands in it. Whether it is
// good is the server's to say: it may know more fields than this program, of which parse is the reader.
func Explain[T any](f *TextFile, err error, parse func(name string, text []byte) (T, error)) error {
	refused, ok := errors.AsType[*client.ProblemError](err)
	if !ok || refused.Status != http.StatusUnprocessableEntity {
		return err
	}
	_, wrong := parse(f.Name, []byte(f.Text))
	if bad, ok := errors.AsType[*strictyaml.Error](wrong); ok {
		bad.Name = f.Path
		return bad
	}
	return fmt.Errorf("%s: %w", f.Path, err)
}
