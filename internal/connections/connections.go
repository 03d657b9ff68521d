package connections

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/workqueue"
)

const maxFile = 1 << 20

// Connections is what plans may reach. The zero value has no sources and no secrets, and reaches public addresses only.
type Connections struct {
	Sources map[string]*Source
	Secrets map[string]*Secret
	HTTP    HTTP
	SMTP    *SMTP // nil: no mail is sent
}

// Load reads a file. An error is a *[strictyaml.Error], or says why the file cannot be read.
func Load(path string) (*Connections, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("connections: %w", err)
	}
	defer func() { _ = file.Close() }() // it was read
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("connections: read %s: %w", path, err)
	}
	return Parse(path, text)
}

// Parse reads the text of a file of that path, beside which the files stand that it names.
func Parse(path string, text []byte) (*Connections, error) {
	doc, err := strictyaml.OpenSecret("connections", path, text, maxFile)
	if err != nil {
		return nil, err
	}
	r := &reader{directory: filepath.Dir(path)}
	c := &Connections{Sources: map[string]*Source{}, Secrets: map[string]*Secret{}}
	err = doc.Root.Fields([]strictyaml.Field{
		{Name: "sources", Read: named("sources", c.Sources, r.readSource)},
		{Name: "secrets", Read: named("secrets", c.Secrets, r.readSecret)},
		{Name: "http", Read: func(v strictyaml.Value) error { return r.readHTTP(v, &c.HTTP) }},
		{Name: "smtp", Read: func(v strictyaml.Value) error { return r.readSMTP(v, &c.SMTP) }},
	}...)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// reader reads what names files beside the file itself.
type reader struct{ directory string }

// size reads a number of bytes within bounds.
func size(into *int, least, most int) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		var n workqueue.Bytes
		text, _ := v.Plain()
		if err := n.UnmarshalText([]byte(text)); err != nil || int(n) < least || int(n) > most {
			return v.Fail("want a size like 512KiB or 16MiB, within %v to %v", workqueue.Bytes(least), workqueue.Bytes(most))
		}
		*into = int(n)
		return nil
	}
}

// names are what sources and secrets may be called.
var names = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// named reads a group of things with names of the operator's.
func named[T any](what string, into map[string]T, read func(string, strictyaml.Value) (T, error),
) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		return v.Entries(what+" by their names", func(name string, v strictyaml.Value) error {
			if !names.MatchString(name) {
				return v.Fail("want a name of up to 64 of A-Z a-z 0-9 _ -")
			}
			made, err := read(name, v)
			into[name] = made
			return err
		})
	}
}

// Source returns the source of a name, or an *UnknownError.
func (c *Connections) Source(name string) (*Source, error) { return lookUp("source", name, c.Sources) }

// Secret returns the secret of a name, or an *UnknownError.
func (c *Connections) Secret(name string) (*Secret, error) { return lookUp("secret", name, c.Secrets) }

func lookUp[T any](what, name string, in map[string]*T) (*T, error) {
	if found := in[name]; found != nil {
		return found, nil
	}
	return nil, &UnknownError{what, name, strings.Join(slices.Sorted(maps.Keys(in)), ", ")}
}

// ResponseLimit returns how many bytes of a response are read when a plan wants so many; 0: it does not say.
func (h *HTTP) ResponseLimit(want int) int {
	most := cmp.Or(h.MaxResponse, DefaultMaxResponse)
	return min(cmp.Or(want, most), most)
}
