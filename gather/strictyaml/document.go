// Package strictyaml reads the YAML files of Tranche: one document of known fields. Errors point to the position of a
// problem.
//
// [Open] rejects what such files do not need before parsing: anchors, aliases, tags, merge keys, multiple documents,
// deep nesting, control characters, huge input. [Value.Decode] reads a value into a struct by JSON names and tags;
// [Value.Fields], [Value.Entries] and [Value.List] read other shapes. JSON is accepted as YAML. [OpenSecret] is for
// files that may contain passwords: its errors quote nothing.
//
// Numbers are decimal digits, texts are not numbers, and fields are known and not repeated. Every error is an
// [*Error] with line, column and, except for secrets, the source line, safe to print. Callers check the meaning of
// values and their combinations.
//
// A [Document] is not safe for concurrent use.
package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// maxDepth bounds nesting. The parser takes seconds for deep nesting, so tokens are checked before it runs.
const maxDepth = 8

// Document is a parsed document.
type Document struct {
	Root Value

	kind, name string
	secret     bool // errors quote nothing
	lines      []string
	places     map[string]*token.Position
}

// Open parses a text of at most limit bytes. Errors use kind, such as collector, and name.
func Open(kind, name string, text []byte, limit int) (*Document, error) {
	d, err := open(&Document{kind: kind, name: name}, text, limit)
	if err == nil && d.Root.node == nil {
		err = d.whole("it is empty")
	}
	return d, err
}

// OpenSecret is [Open] for a text that may contain passwords, even by mistake: errors quote only what looks like
// field names. An empty text is a document without fields.
func OpenSecret(kind, name string, text []byte, limit int) (*Document, error) {
	return open(&Document{kind: kind, name: name, secret: true}, text, limit)
}

func open(d *Document, text []byte, limit int) (*Document, error) {
	d.places = map[string]*token.Position{}
	if len(text) > limit {
		return nil, d.whole("it has %d bytes; a %s has at most %d", len(text), d.kind, limit)
	}
	text = bytes.TrimPrefix(text, []byte("\ufeff")) // added by some editors
	d.lines = strings.Split(strings.ReplaceAll(string(text), "\r\n", "\n"), "\n")
	if err := d.checkText(); err != nil {
		return nil, err
	}
	root, err := d.parse(string(text))
	if err != nil {
		return nil, err
	}
	d.Root = Value{of: d, node: root}
	if root != nil {
		d.Root.at = root.GetToken().Position
	}
	return d, nil
}

// Rename changes the name used in errors.
func (d *Document) Rename(name string) { d.name = name }

// Given reports whether a field was given, by its path, such as http.url or steps[0].name.
func (d *Document) Given(path string) bool { return d.places[path] != nil }

// Fail returns an error at the position of a field or, if it is missing, of its parent.
func (d *Document) Fail(path, format string, args ...any) error {
	problem := path + ": " + fmt.Sprintf(format, args...)
	for at := path; at != ""; at = at[:max(strings.LastIndexAny(at, ".["), 0)] {
		if place, known := d.places[at]; known {
			return d.fail(place, "%s", problem)
		}
	}
	return d.whole("%s", problem)
}

func (d *Document) checkText() error {
	for i, line := range d.lines {
		column := 0
		for at, c := range line {
			column++
			_, size := utf8.DecodeRuneInString(line[at:])
			if c == utf8.RuneError && size == 1 {
				return d.fail(&token.Position{Line: i + 1, Column: column}, "this is not UTF-8")
			}
			if c < ' ' && c != '\t' || c == 0x7f {
				return d.fail(&token.Position{Line: i + 1, Column: column}, "a control character (%U) is not allowed", c)
			}
		}
	}
	return nil
}

func (d *Document) parse(text string) (ast.Node, error) {
	tokens := lexer.Tokenize(text)
	if err := d.checkTokens(tokens); err != nil {
		return nil, err
	}
	var options []parser.Option
	if d.secret { // the parser would quote the name
		options = append(options, parser.AllowDuplicateMapKey())
	}
	file, err := parser.Parse(tokens, 0, options...)
	if err != nil {
		return nil, d.syntax(err)
	}
	var root ast.Node
	for _, doc := range file.Docs {
		_, comment := doc.Body.(*ast.CommentGroupNode)
		switch {
		case doc.Body == nil || comment:
		case root != nil:
			return nil, d.fail(doc.Body.GetToken().Position, "found a second document; want one")
		default:
			root = doc.Body
		}
	}
	return root, nil
}

// checkTokens rejects features that such files do not need, and deep nesting.
func (d *Document) checkTokens(tokens token.Tokens) error {
	flow, dashes, line := 0, 0, 0
	for _, t := range tokens {
		if strings.ContainsRune(t.Value, 0) { // an escape in quotes
			return d.fail(t.Position, "a NUL is not part of any text here; leave it out")
		}
		if t.Position.Line != line {
			line, dashes = t.Position.Line, 0
		}
		switch t.Type {
		case token.AnchorType, token.AliasType:
			return d.fail(t.Position, "anchors and aliases are not allowed; write the value out, and in quotes if it begins "+
				"with * or &")
		case token.MergeKeyType:
			return d.fail(t.Position, "merge keys are not allowed; write the fields out")
		case token.TagType, token.DirectiveType, token.MappingKeyType:
			if d.secret {
				return d.fail(t.Position, "tags, directives and marks of keys are not allowed; write the value out")
			}
			return d.fail(t.Position, "%.40q is not allowed here", t.Value)
		case token.MappingStartType, token.SequenceStartType:
			flow++
		case token.MappingEndType, token.SequenceEndType:
			flow--
		case token.SequenceEntryType:
			dashes++
		}
		if flow > maxDepth || dashes > maxDepth {
			return d.fail(t.Position, "the nesting is deeper than %d", maxDepth)
		}
	}
	return nil
}

func (d *Document) whole(format string, args ...any) error {
	return &Error{Kind: d.kind, Name: d.name, Problem: fmt.Sprintf(format, args...)}
}

func (d *Document) fail(at *token.Position, format string, args ...any) error {
	e := &Error{Kind: d.kind, Name: d.name, Line: at.Line, Column: at.Column, Problem: fmt.Sprintf(format, args...)}
	if !d.secret && at.Line >= 1 && at.Line <= len(d.lines) {
		e.Source = d.lines[at.Line-1]
	}
	return e
}

func (d *Document) syntax(err error) error {
	const unquoted = "this is not YAML; check for a wrong indent or a missing quote"
	var positioned yaml.Error
	switch known := errors.As(err, &positioned) && positioned.GetToken() != nil; {
	case !known && d.secret:
		return d.whole(unquoted)
	case !known:
		return d.whole("%v", err)
	}
	at := positioned.GetToken().Position
	if at.Line >= 1 && at.Line <= len(d.lines) {
		text := d.lines[at.Line-1]
		begin := text[:len(text)-len(strings.TrimLeft(text, " -\t"))]
		if tab := strings.IndexByte(begin, '\t'); tab >= 0 {
			return d.fail(&token.Position{Line: at.Line, Column: tab + 1},
				"a tab; YAML is indented with spaces, so put spaces in its place")
		}
	}
	if d.secret {
		return d.fail(at, unquoted)
	}
	return d.fail(at, "%s", positioned.GetMessage())
}

// Error is returned for an invalid text.
type Error struct {
	Kind    string // what it should be, such as collector
	Name    string // the caller's name for it; may be empty
	Line    int    // from 1; 0 for the whole text
	Column  int    // from 1, in characters
	Source  string // the line; empty if it must not be shown
	Problem string // what is wrong, with the field if known
}

// Error returns the position and problem, and below them the marked source line.
func (e *Error) Error() string {
	input := strings.TrimSpace(e.Kind + " " + e.Name)
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", input, e.Problem)
	}
	place := fmt.Sprintf("%s:%d:%d: %s", input, e.Line, e.Column, e.Problem)
	if e.Source == "" {
		return place
	}
	margin := fmt.Sprintf("%5d | ", e.Line)
	before, shown := e.window()
	return fmt.Sprintf("%s\n%s%s\n%*s^", place, margin, shown, len(margin)+before, "")
}

// sourceWidth bounds the part of a source line that is shown.
const sourceWidth = 100

// window returns the source line around the column, without control characters, and the offset of the column in it.
func (e *Error) window() (before int, shown string) {
	line := []rune(e.Source)
	column := min(max(e.Column-1, 0), len(line))
	from := max(0, column-sourceWidth/2)
	to := min(len(line), from+sourceWidth)
	return column - from, strings.Map(inert, string(line[from:to]))
}

func inert(r rune) rune {
	switch {
	case r == '\t':
		return ' '
	case !unicode.IsPrint(r):
		return unicode.ReplacementChar
	}
	return r
}
