package intake

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/gather/itemschema"
	"github.com/tranchehq/tranche/internal/intake/row"
)

// The values of Config.Types.
const (
	TypeNumber = "number"
	TypeText   = "text"
	TypeBool   = "bool"
	TypeJSON   = "json"
)

// Types lists the values of Config.Types.
func Types() []string { return []string{TypeNumber, TypeText, TypeBool, TypeJSON} }

// raw returns the Config for reading rows before they are shaped: with the key's name in the input.
func (c Config) raw() Config {
	for _, old := range slices.Sorted(maps.Keys(c.Rename)) {
		if c.Key != "" && c.Rename[old] == c.Key {
			c.Key = old
			break
		}
	}
	return c
}

type shaper struct {
	cfg    Config
	fields map[string]*shaped // by name in the input
	keep   bool               // keep fields without an entry
	depth  int
	out    []byte
}

type shaped struct {
	drop   bool
	taken  string // the field that is renamed to this one's name
	prefix []byte // the new name and a colon
	called string
	kind   string // empty: unchanged
	seen   bool
}

func newShaper(cfg Config) *shaper {
	kept := cfg.Columns
	if cfg.NoHeader {
		kept = nil // they name all columns
	}
	if kept == nil && len(cfg.Rename) == 0 && len(cfg.Types) == 0 {
		return nil
	}
	s := &shaper{cfg: cfg, fields: map[string]*shaped{}, keep: kept == nil, depth: cfg.withDefaults().MaxDepth}
	old := s.rename(kept)
	for _, name := range kept {
		s.named(name, name)
	}
	for name, kind := range cfg.Types {
		from := cmp.Or(old[name], name)
		s.named(from, name).kind = kind
	}
	for name, f := range s.fields {
		f.drop = kept != nil && !slices.Contains(kept, name)
		f.prefix, _ = row.AppendString(nil, []byte(f.called))
		f.prefix = append(f.prefix, ':')
	}
	return s
}

func (s *shaper) named(name, called string) *shaped {
	if s.fields[name] == nil {
		s.fields[name] = &shaped{called: called}
	}
	return s.fields[name]
}

// rename adds entries for renamed fields and for fields whose name is taken by them. It returns the old names by
// the new.
func (s *shaper) rename(kept []string) map[string]string {
	old := map[string]string{}
	for from, to := range s.cfg.Rename {
		old[to] = from
		s.fields[from] = &shaped{called: to}
	}
	for to, from := range old {
		if s.fields[to] == nil && kept == nil {
			s.fields[to] = &shaped{taken: from, called: to, seen: true}
		}
	}
	return old
}

func (s *shaper) called(name string) string {
	if to, renamed := s.cfg.Rename[name]; renamed {
		return to
	}
	return name
}

// take shapes a row, or checks at the end that all configured fields have appeared. Tables have them in the first row.
func (s *shaper) take(r *Reader, item *row.Item, end bool) error {
	_, back := r.rows.(*restored)
	objects := back || r.format == NDJSON || r.format == Stream
	if end {
		if objects && !s.cfg.Partial {
			return s.missing(nil)
		}
		return nil
	}
	bad := s.row(r, item)
	if !objects && r.count == 0 {
		names := FieldNames(item.Payload)
		if c, ok := r.rows.(*csvReader); ok {
			names = c.names // it leaves out empty ones
		}
		bad = cmp.Or(s.missing(names), bad)
	}
	if bad == nil {
		item.Payload = append(item.Payload[:0], s.out...)
	}
	return bad
}

// missing names a configured field that no row had and that is not among the names of the columns.
func (s *shaper) missing(names []string) error {
	for _, name := range slices.Sorted(maps.Keys(s.fields)) {
		if s.fields[name].seen || slices.Contains(names, name) {
			continue
		}
		setting := "types"
		if to, renamed := s.cfg.Rename[name]; renamed {
			setting = "rename " + name + "=" + to
		} else if slices.Contains(s.cfg.Columns, name) {
			setting = "columns"
		}
		reason := fmt.Sprintf("%s: no column or field %s", setting, row.Quote(name))
		if len(names) > 0 {
			reason += "; there are: " + row.List(names)
		}
		return &row.InputError{Reason: reason}
	}
	return nil
}

func (s *shaper) row(r *Reader, item *row.Item) (bad error) {
	text := item.Payload
	s.out = append(s.out[:0], '{')
	for at := 1; at < len(text) && text[at] == '"'; {
		after := itemschema.ValueEnd(text, at)
		end := itemschema.ValueEnd(text, after+1)
		f, err := s.field(text[at:after])
		if err != nil {
			return r.wrong(item, string(text[at:after]), err.Error())
		}
		if err := s.add(f, text[at:after], text[after+1:end]); err != nil && bad == nil {
			bad = r.wrong(item, f.called, err.Error()) // the rest may be missing, which is the cause
		}
		at = end + 1
	}
	s.out = append(s.out, '}')
	return bad
}

func (s *shaper) add(f *shaped, name, value []byte) (err error) {
	if f != nil {
		f.seen = true
	}
	switch {
	case f == nil && !s.keep || f != nil && f.drop:
		return nil
	case f != nil && f.taken != "":
		return fmt.Errorf("%s is renamed to this name, which another has; rename it, too, or say which columns are kept",
			row.Quote(f.taken))
	}
	if len(s.out) > 1 {
		s.out = append(s.out, ',')
	}
	if f == nil {
		s.out = append(append(append(s.out, name...), ':'), value...)
		return nil
	}
	s.out, err = convert(append(s.out, f.prefix...), value, f.kind, s.depth-1)
	return err
}

func (s *shaper) field(quoted []byte) (*shaped, error) {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return s.fields[string(quoted[1:len(quoted)-1])], nil
	}
	plain, err := jsontext.AppendUnquote(nil, quoted)
	if err != nil {
		return nil, fmt.Errorf("its name is not text: %w", err)
	}
	return s.fields[string(plain)], nil
}

func convert(dst, value []byte, kind string, depth int) ([]byte, error) {
	text := value[0] == '"'
	var said string
	if text && kind != "" && kind != TypeText {
		plain, err := jsontext.AppendUnquote(nil, value)
		if err != nil {
			return nil, fmt.Errorf("it is not text: %w", err)
		}
		if said = strings.TrimSpace(string(plain)); said == "" {
			return append(dst, "null"...), nil
		}
	}
	null := value[0] == 'n'
	switch kind {
	case TypeText:
		if text || null {
			return append(dst, value...), nil
		}
		quoted, bad := row.AppendString(dst, value)
		if bad >= 0 {
			return nil, fmt.Errorf("%s", row.BadByte(value, bad))
		}
		return quoted, nil
	case TypeNumber:
		return convertNumber(dst, value, said, text, null)
	case TypeBool:
		return convertBool(dst, value, said, text, null)
	case TypeJSON:
		if text {
			return convertJSON(dst, said, depth)
		}
	}
	return append(dst, value...), nil
}

func convertNumber(dst, value []byte, said string, text, null bool) ([]byte, error) {
	switch {
	case null || !text && jsontext.Value(value).Kind() == '0':
		return append(dst, value...), nil
	case !text:
		return nil, fmt.Errorf("want a number, got %s", row.KindName(jsontext.Value(value).Kind()))
	}
	if c := said[0]; c != '-' && (c < '0' || c > '9') || !json.Valid([]byte(said)) {
		return nil, fmt.Errorf("%s is not written as a number, like -12.50; write it without spaces, groups, and zeros or a "+
			"plus in front, or leave it a text", row.Quote(said))
	}
	return append(dst, said...), nil
}

func convertBool(dst, value []byte, said string, text, null bool) ([]byte, error) {
	switch kind := jsontext.Value(value).Kind(); {
	case null || kind == 't' || kind == 'f':
		return append(dst, value...), nil
	case !text:
		said = string(value)
	}
	switch strings.ToLower(said) {
	case "true", "t", "yes", "1":
		return append(dst, "true"...), nil
	case "false", "f", "no", "0":
		return append(dst, "false"...), nil
	}
	return nil, fmt.Errorf("%s is neither true nor false; write true, yes or 1, or false, no or 0", row.Quote(said))
}

func convertJSON(dst []byte, said string, depth int) ([]byte, error) {
	value := jsontext.Value(said)
	switch {
	case !value.IsValid():
		return nil, fmt.Errorf("%s is not JSON, or a name appears twice in it; fix it, or leave it a text", row.Quote(said))
	case row.HasEscapedNUL(value):
		return nil, fmt.Errorf(`it holds \u0000, NUL, which PostgreSQL cannot store in a text; remove it`)
	case row.Deeper(value, depth):
		return nil, fmt.Errorf("it is nested deeper than services take; flatten it, or leave it a text")
	}
	return row.AppendCompact(dst, value), nil
}

// MaxPlaces is the maximum number of places in an InvalidError.
const MaxPlaces = 20

const maxInvalid = 1000

// InvalidError is returned for items that do not match the schema.
type InvalidError struct {
	Source string         // name of the input; may be empty
	Places []InvalidPlace // the first ones, in input order
	More   bool           // the rest was not checked
	Mended bool           // the items are corrections of others
}

// InvalidPlace is one fault of one item.
type InvalidPlace struct {
	Unit    string // what Line counts: line, row or message
	Line    int
	Key     string
	Field   string // empty: the whole item
	Problem string
}

// Where returns the item's line and key.
func (p *InvalidPlace) Where() string {
	return fmt.Sprintf("%s %d, key %s", p.Unit, p.Line, row.Quote(p.Key))
}

// What returns the field and the problem.
func (p *InvalidPlace) What() string {
	if p.Field == "" {
		return p.Problem
	}
	return fmt.Sprintf("field %s: %s", row.Quote(p.Field), p.Problem)
}

func (e *InvalidError) Error() string {
	var b strings.Builder
	if e.Source != "" {
		b.WriteString(e.Source + ": ")
	}
	items := map[int]bool{}
	for i := range e.Places {
		items[e.Places[i].Line] = true
	}
	switch {
	case e.More:
		fmt.Fprintf(&b, "items do not fit the schema; the first %d places are:", len(e.Places))
	case len(items) == 1:
		b.WriteString("one item does not fit the schema:")
	default:
		fmt.Fprintf(&b, "%d items do not fit the schema:", len(items))
	}
	for i := range e.Places {
		fmt.Fprintf(&b, "\n%s, %s", e.Places[i].Where(), e.Places[i].What())
	}
	if e.Mended {
		b.WriteString("\nNothing was corrected. Fix the items")
		return b.String()
	}
	b.WriteString("\nNothing was started. Fix the items or the schema, or have such items fail alone: --on-invalid fail")
	return b.String()
}

type schemaCheck struct {
	schema  *itemschema.Schema
	lenient bool
	source  string
}

// take checks a row. In strict mode the first invalid row makes it check the remaining rows too, so that one error
// lists all faults.
func (c *schemaCheck) take(r *Reader, item *row.Item) error {
	item.Invalid = ""
	faults, err := c.schema.Check(item.Payload)
	if err != nil {
		return &row.InputError{Line: item.Line, Reason: err.Error()}
	}
	if faults == nil {
		return nil
	}
	if c.lenient {
		item.Invalid = describe(faults)
		return nil
	}
	bad := &InvalidError{Source: c.source}
	for {
		for _, f := range faults {
			if len(bad.Places) == MaxPlaces {
				bad.More = true
				return bad
			}
			bad.Places = append(bad.Places, InvalidPlace{cmp.Or(r.unit, "line"), item.Line, item.Key, f.Field, f.Problem})
		}
		err := r.row(item)
		if errors.Is(err, io.EOF) {
			return bad
		}
		if err != nil {
			return err
		}
		if faults, err = c.schema.Check(item.Payload); err != nil {
			return &row.InputError{Line: item.Line, Reason: err.Error()}
		}
	}
}

func describe(faults []itemschema.Fault) string {
	var b strings.Builder
	for i, f := range faults {
		said := f.String()
		if b.Len()+len(said) > maxInvalid {
			fmt.Fprintf(&b, "; and %d more", len(faults)-i)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(said)
	}
	return b.String()
}
