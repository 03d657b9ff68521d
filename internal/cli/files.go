package cli

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// TextFile is a document to apply.
type TextFile struct {
	Path string
	Name string // default name of the document: the file's without extension
	Text string
}

// ReadText reads a file, or standard input for -. what names it in errors. It reads up to limit+1 bytes, so that the
// server refuses larger files.
func ReadText(what, path string, stdin io.Reader, limit int64) (TextFile, error) {
	base := filepath.Base(path)
	f := TextFile{Path: path, Name: strings.TrimSuffix(base, filepath.Ext(base))}
	if path == "-" {
		f.Path, f.Name = "standard input", ""
	}
	file, _, err := OpenItems(what, path, stdin)
	if err != nil {
		return f, err
	}
	defer func() { _ = file.Close() }() // only read
	text, err := io.ReadAll(io.LimitReader(file, limit+1))
	switch {
	case err != nil:
		return f, &usageError{fmt.Sprintf("%s %s: %v", what, f.Path, cmp.Or(errors.Unwrap(err), err))}
	case len(text) == 0:
		return f, &usageError{fmt.Sprintf("%s %s is empty; it must be YAML or JSON", what, f.Path)}
	}
	f.Text = string(text)
	return f, nil
}

// YAML is the content type of a document.
const YAML = "application/yaml"

// Apply reads a document from a file, or standard input for -, and passes it to send. what and parse are for errors,
// as in ReadText and Explain.
func Apply[Answer, Spec any](
	term *Console, what, path string, limit int64, parse func(name string, text []byte) (Spec, error),
	send func(name string, text io.Reader) (Answer, error),
) (none Answer, err error) {
	file, err := ReadText(what, path, term.In, limit)
	if err != nil {
		return none, err
	}
	answer, err := send(file.Name, strings.NewReader(file.Text))
	if err != nil {
		return none, Explain(&file, err, parse)
	}
	return answer, nil
}

// Explain adds file and line to the server's refusal of a file's content, found by parse. Only the server decides,
// because it may know more fields than this program.
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

// IsPlanFile reports whether an argument is a file, by its extension or existence, and not a saved plan.
func IsPlanFile(arg string) bool {
	if slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(arg))) {
		return true
	}
	info, err := os.Stat(arg)
	return err == nil && !info.IsDir()
}

// ReadPlan reads a plan from a file, or standard input for -.
func ReadPlan(path string, stdin io.Reader) (TextFile, error) {
	return ReadText("plan", path, stdin, gather.MaxPlanBytes)
}

// OpenItems opens the file of a flag and returns its size, 0 if unknown.
func OpenItems(flag, name string, stdin io.Reader) (io.ReadCloser, int64, error) {
	if name == "-" {
		return io.NopCloser(stdin), 0, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, 0, &usageError{fmt.Sprintf("%s %s: %v", flag, name, errors.Unwrap(err))}
	}
	info, err := file.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s %s is a directory; name a file, or - for standard input", flag, name)
	}
	if err != nil {
		return nil, 0, errors.Join(&usageError{err.Error()}, file.Close())
	}
	return file, info.Size(), nil
}

// Upload sends the file of a flag, or standard input for -, showing the progress at a terminal.
func Upload[Answer any](
	term *Console, flag, name string, send func(items io.Reader) (Answer, error),
) (none Answer, err error) {
	file, size, err := OpenItems(flag, name, term.In)
	if err != nil {
		return none, err
	}
	defer func() { _ = file.Close() }()
	up := &upload{from: file, size: size, term: term, live: IsTerminal(term.Err)}
	answer, err := send(up)
	up.end()
	if up.err != nil {
		return none, fmt.Errorf("read %s %s: %w", flag, name, up.err)
	}
	return answer, err
}

type upload struct {
	from  io.Reader
	size  int64 // 0: unknown
	sent  int64
	shown time.Time
	err   error
	term  *Console
	live  bool
}

func (u *upload) Read(p []byte) (int, error) {
	n, err := u.from.Read(p)
	u.sent += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		u.err = err
	}
	if u.live && time.Since(u.shown) > 200*time.Millisecond {
		u.shown = time.Now()
		text := fmt.Sprintf("%.1f MB", float64(u.sent)/1e6)
		if u.size > 0 {
			text = fmt.Sprintf("%3d%%  %s", u.sent*100/u.size, text)
		}
		_, _ = fmt.Fprintf(u.term.Err, "\r\x1b[Kloading  %s", text) // cosmetic
	}
	return n, err
}

func (u *upload) end() {
	if u.live && !u.shown.IsZero() {
		_, _ = fmt.Fprint(u.term.Err, "\r\x1b[K") // cosmetic
	}
}

// Limits on one request for keys. The first is the server's; the bytes leave room for the JSON encoding.
const (
	MaxKeysOfRequest  = 100_000
	maxBytesOfRequest = 6 << 20
	maxKeyLine        = 64 << 10
)

// ReadKeys reads a file with one key per line, in parts of one request each. Lines are used unchanged; empty ones are
// skipped.
func ReadKeys(name string, stdin io.Reader) ([][]string, error) {
	from, _, err := OpenItems("--keys", name, stdin)
	if err != nil {
		return nil, &usageError{err.Error()}
	}
	defer func() { _ = from.Close() }()
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, maxKeyLine)
	var parts [][]string
	var part []string
	bytes, number := 0, 0
	for lines.Scan() {
		number++
		key := strings.TrimSuffix(lines.Text(), "\r")
		if number == 1 {
			key = strings.TrimPrefix(key, "\ufeff")
		}
		if key == "" {
			continue
		}
		if !utf8.ValidString(key) { // JSON would change the key
			return nil, &usageError{fmt.Sprintf("--keys %s: line %d is not UTF-8: %q; leave it out", name, number,
				Short(key, 100))}
		}
		if len(part) == MaxKeysOfRequest || bytes+len(key) > maxBytesOfRequest {
			parts, part, bytes = append(parts, part), nil, 0
		}
		part, bytes = append(part, key), bytes+len(key)+len(`"",`)
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, &usageError{fmt.Sprintf("--keys %s: line %d is longer than a key can be; give one key per line", name,
			number+1)}
	case err != nil:
		return nil, fmt.Errorf("read --keys %s: %w", name, err)
	case len(part) == 0:
		return nil, &usageError{fmt.Sprintf("--keys %s has no key; give one key per line", name)}
	}
	return append(parts, part), nil
}

// PrintLines copies a stream of JSON documents: unchanged for --json, else one line per document. Documents with an
// empty line are skipped.
func PrintLines[T any](term *Console, stream io.Reader, line func(*T) string) error {
	if term.JSON {
		return CopyStream(term.Out, stream)
	}
	decoder := json.NewDecoder(stream)
	out := bufio.NewWriter(term.Out)
	for {
		var document T
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return out.Flush()
		}
		if err != nil {
			return errors.Join(BrokenOff(err), out.Flush())
		}
		text := line(&document)
		if text == "" {
			continue
		}
		if _, err := fmt.Fprintln(out, text); err != nil {
			return fmt.Errorf("write to standard output: %w", err)
		}
	}
}

// CopyStream copies the server's output.
func CopyStream(to io.Writer, from io.Reader) error {
	if _, err := io.Copy(to, from); err != nil {
		return BrokenOff(err)
	}
	return nil
}

// BrokenOff returns the error of an interrupted export.
func BrokenOff(err error) error {
	return fmt.Errorf("the export was interrupted and is incomplete; repeat it: %w", err)
}

// KeyFlags say how to read a file of items, and which field is the key.
type KeyFlags struct {
	Key    string `json:"key,omitempty" aliases:"key-column" help:"The column or field with the key of an item. Default: key, then id, then the first column." placeholder:"COLUMN"`
	Format string `json:"format,omitempty" enum:",csv,ndjson,parquet" default:"" help:"csv, ndjson or parquet; recognized when absent." placeholder:"FORMAT"`
}

// RowFlags say how to read the rows.
type RowFlags struct {
	Encoding  string   `help:"Of the text: utf-8, latin-1, windows-1252, utf-16, utf-16le or utf-16be." placeholder:"NAME"`
	Header    bool     `default:"true" negatable:"" help:"CSV begins with the names of its columns (${default})."`
	Delimiter string   `help:"Between fields of CSV: comma, semicolon, tab or bar; found when absent." placeholder:"NAME"`
	Columns   []string `help:"Columns or fields to keep; without a header the names of all columns." placeholder:"NAME"`
	Rename    []string `help:"Another name for a column or field; repeatable." placeholder:"OLD=NEW"`
	Types     []string `help:"What a field becomes: number, text, bool or json; repeatable." placeholder:"FIELD=TYPE"`
}

// HeaderParam is --no-header as a query parameter; empty by default.
func (f RowFlags) HeaderParam() string {
	if f.Header {
		return ""
	}
	return "false"
}
