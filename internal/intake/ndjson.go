package intake

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/internal/intake/row"
)

type ndjsonReader struct {
	lines    *lineReader
	maxField int
	maxDepth int
	rename   map[string]string
	key      string // empty until the first row decides
	quoted   []byte // the key's name as usually written in JSON
	keyless  bool   // the key is not in the object

	src bytes.Buffer // the line being read, for the decoder
	dec *jsontext.Decoder
}

func newNDJSON(lines *lineReader, cfg Config) *ndjsonReader {
	n := &ndjsonReader{
		lines: lines, maxField: cfg.MaxFieldBytes, maxDepth: cfg.MaxDepth, rename: cfg.Rename,
		dec: jsontext.NewDecoder(new(bytes.Buffer)),
	}
	n.setKey(cfg.Key)
	return n
}

func (n *ndjsonReader) KeyName() string { return n.key }

func (n *ndjsonReader) setKey(key string) {
	n.key = key
	n.quoted, _ = row.AppendString(nil, []byte(key))
}

func (n *ndjsonReader) Next(item *row.Item) error {
	line, err := n.nextLine()
	if err != nil {
		return err
	}
	item.Line = n.lines.number
	if n.key == "" {
		if err := n.chooseKey(line); err != nil {
			return err
		}
	}
	if item.Key, err = n.check(line); err != nil {
		return err
	}
	item.Payload = row.AppendCompact(item.Payload[:0], line)
	return nil
}

func (n *ndjsonReader) nextLine() ([]byte, error) {
	for {
		line, err := n.lines.next()
		if errors.Is(err, errLineTooLong) {
			return nil, n.errorAt("", "the line is larger than %s; write one object a line, shorten it, or raise the limit",
				row.Size(n.lines.limit))
		}
		if err != nil {
			return nil, err
		}
		if line = bytes.Trim(line, " \t\r"); len(line) == 0 {
			continue
		}
		return line, n.checkBytes(line)
	}
}

func (n *ndjsonReader) checkBytes(line []byte) error {
	if at := bytes.IndexByte(line, 0); at >= 0 {
		return n.errorAt("", "%s", row.BadByte(line, at))
	}
	if !utf8.Valid(line) {
		return n.errorAt("", "%s", row.BadByte(line, row.InvalidAt(line)))
	}
	return nil
}

// check walks the object once: it must be valid JSON, within the limits, and have the key.
func (n *ndjsonReader) check(line []byte) (key string, err error) {
	if err := n.open(line); err != nil {
		return "", err
	}
	mayHoldNUL := bytes.Contains(line, []byte(row.EscapedNUL))
	found := false
	for n.dec.PeekKind() != '}' {
		name, err := n.dec.ReadValue()
		if err != nil {
			return "", n.explain(err)
		}
		isKey := !n.keyless && n.isKey(name)
		nul := mayHoldNUL && row.HasEscapedNUL(name)
		value, err := n.dec.ReadValue()
		switch {
		case err != nil:
			return "", n.explain(err)
		case len(value) > n.maxField:
			return "", n.errorAt(n.field(), "larger than %s; shorten it, or raise the limit", row.Size(n.maxField))
		case row.Deeper(value, n.maxDepth-1):
			return "", n.errorAt(n.field(), "nested deeper than %d, with the row's own object, which services do not take; "+
				"flatten it, or send it as a string", n.maxDepth)
		case nul, mayHoldNUL && row.HasEscapedNUL(value):
			return "", n.errorAt(n.field(), `holds \u0000, NUL, which PostgreSQL cannot store in a text; remove it`)
		case isKey:
			if key, err = n.keyOf(value); err != nil {
				return "", err
			}
			found = true
		}
	}
	if err := n.close(); err != nil {
		return "", err
	}
	return key, n.mustHaveKey(found, line)
}

func (n *ndjsonReader) mustHaveKey(found bool, line []byte) error {
	if found || n.keyless {
		return nil
	}
	return n.noKey(n.key, line)
}

func (n *ndjsonReader) open(line []byte) error {
	n.src = *bytes.NewBuffer(line)
	n.dec.Reset(&n.src)
	switch kind := n.dec.PeekKind(); kind {
	case '{':
	case 0:
		_, err := n.dec.ReadToken()
		return n.explain(err)
	default:
		return n.errorAt("", "a row must be a JSON object, and this is %s; write one {…} a line", row.KindName(kind))
	}
	_, err := n.dec.ReadToken()
	return n.explain(err)
}

func (n *ndjsonReader) close() error {
	if _, err := n.dec.ReadToken(); err != nil {
		return n.explain(err)
	}
	if _, err := n.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return n.errorAt("", "more text after the object; write one object a line")
	}
	return nil
}

func (n *ndjsonReader) isKey(name jsontext.Value) bool {
	if bytes.IndexByte(name, '\\') < 0 {
		return bytes.Equal(name, n.quoted)
	}
	plain, err := jsontext.AppendUnquote(nil, name)
	return err == nil && string(plain) == n.key
}

func (n *ndjsonReader) keyOf(value jsontext.Value) (string, error) {
	switch kind := value.Kind(); {
	case kind == '"' && bytes.IndexByte(value, '\\') < 0:
		return string(value[1 : len(value)-1]), nil
	case kind == '"':
		plain, err := jsontext.AppendUnquote(nil, value)
		return string(plain), n.explain(err)
	case kind == '0' && !bytes.ContainsAny(value, ".eE"):
		return string(value), nil
	case kind == '0':
		return "", n.errorAt(n.key, "the key is the number %s; it must be a string or a whole number without exponent",
			row.Quote(string(value)))
	default:
		return "", n.errorAt(n.key, "the key is %s; it must be a string or a whole number", row.KindName(kind))
	}
}

func (n *ndjsonReader) chooseKey(line []byte) error {
	names, err := n.fields(line)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return n.noKey("", line)
	}
	n.setKey(row.UsualKey(names, n.rename))
	return nil
}

func (n *ndjsonReader) fields(line []byte) ([]string, error) {
	if err := n.open(line); err != nil {
		return nil, err
	}
	var names []string
	for n.dec.PeekKind() != '}' {
		name, err := n.dec.ReadToken()
		if err != nil {
			return nil, n.explain(err)
		}
		names = append(names, name.String())
		if err := n.dec.SkipValue(); err != nil {
			return nil, n.explain(err)
		}
	}
	return names, nil
}

func (n *ndjsonReader) noKey(wanted string, line []byte) error {
	names, err := n.fields(line)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return n.errorAt("", "the object is empty; it needs a field for the key")
	}
	return n.errorAt("", "%s", row.NoKey("field", wanted, names))
}

func (n *ndjsonReader) field() string {
	for token := range n.dec.StackPointer().Tokens() {
		return token
	}
	return ""
}

func (n *ndjsonReader) errorAt(field, format string, args ...any) error {
	return &row.LineError{Line: n.lines.number, Column: field, Reason: fmt.Sprintf(format, args...)}
}

func (n *ndjsonReader) explain(err error) error {
	if err == nil {
		return nil
	}
	var syntax *jsontext.SyntacticError
	if !errors.As(err, &syntax) {
		return n.errorAt("", "not valid JSON (%v)", err)
	}
	field := ""
	for token := range syntax.JSONPointer.Tokens() {
		field = token
		break
	}
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		return n.errorAt(field, "the name %s appears twice in one object; remove one",
			row.Quote(syntax.JSONPointer.LastToken()))
	case errors.Is(err, io.ErrUnexpectedEOF):
		return n.errorAt(field, "the line ends before the object does; write each object on one line")
	default:
		return n.errorAt(field, "not valid JSON at byte %d: %v", syntax.ByteOffset+1, syntax.Err)
	}
}
