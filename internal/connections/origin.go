package connections

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tranchehq/tranche/gather/strictyaml"
)

const (
	// maxSecret bounds secrets, so that what quotes a stranger's answer can look for them in a bounded piece of it.
	maxSecret = 4 << 10
	// rereadAfter is how old a secret that was read from a file may be.
	rereadAfter = 10 * time.Second
)

// origin is where a text stands that the file does not contain: in the environment or in a file.
type origin struct {
	env, file string

	mu    sync.Mutex
	text  string
	old   []string // what it was before, for redaction
	since time.Time
}

// fields are the fields by which an origin is given.
func (o *origin) fields(r *reader) []strictyaml.Field {
	return []strictyaml.Field{
		{Name: "env", Read: strictyaml.Text(&o.env)},
		{Name: "file", Read: func(v strictyaml.Value) error {
			err := strictyaml.Text(&o.file)(v)
			o.file = r.beside(o.file)
			return err
		}},
	}
}

// elsewhere reads a value that says where the text stands.
func (o *origin) elsewhere(r *reader, v strictyaml.Value) error {
	if _, itself := v.Text(); itself {
		return v.Fail("the text itself does not belong here; say where it stands, like {env: VARIABLE} or {file: FILE}")
	}
	return v.Fields(o.fields(r)...)
}

// check reads the text for the first time.
func (o *origin) check(v strictyaml.Value) error {
	if (o.env == "") == (o.file == "") {
		return v.Fail("say where it stands: either env: VARIABLE or file: FILE")
	}
	if _, err := o.read(); err != nil {
		return v.Fail("%v", err)
	}
	return nil
}

// beside makes a path that is not absolute one beside the file.
func (r *reader) beside(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(r.directory, path)
}

// read returns the text. One from a file is read again from time to time; while that fails the one before is good.
func (o *origin) read() (string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.text != "" && (o.file == "" || time.Since(o.since) < rereadAfter) {
		return o.text, nil
	}
	text, err := o.fetch()
	switch {
	case err != nil && o.text == "":
		return "", err
	case err == nil && text != o.text:
		if o.text != "" {
			o.old = append(o.old, o.text)
		}
		o.text = text
	}
	o.since = time.Now()
	return o.text, nil
}

// all returns every text that it has been.
func (o *origin) all() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append(slices.Clip(o.old), o.text)
}

func (o *origin) fetch() (string, error) {
	if o.env != "" {
		text, set := os.LookupEnv(o.env)
		if !set || text == "" {
			return "", fmt.Errorf("the environment has no %s, or it is empty", o.env)
		}
		return text, checkText(text, "$"+o.env)
	}
	file, err := os.Open(o.file)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // it was read
	raw, err := io.ReadAll(io.LimitReader(file, maxSecret+2))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", o.file, err)
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(raw), "\n"), "\r")
	if text == "" {
		return "", fmt.Errorf("%s is empty", o.file)
	}
	return text, checkText(text, o.file)
}

var errControl = errors.New("a control character stands in it; it is to be one line of text")

// checkText refuses what could be no secret, or would break out of a header.
func checkText(text, where string) error {
	if len(text) > maxSecret {
		return fmt.Errorf("%s has more than %d bytes", where, maxSecret)
	}
	if strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return fmt.Errorf("%s: %w", where, errControl)
	}
	return nil
}
