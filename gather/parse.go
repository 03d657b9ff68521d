package gather

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Limits of the YAML. The parser takes seconds for deep nesting, so depth is counted on the tokens before it runs.
const (
	MaxPlanBytes = 64 << 10
	maxYAMLDepth = 8
)

// Parse reads a plan from YAML, or from JSON, which is YAML too. The name is what errors call the input, and the plan's
// own unless it has a name field.
//
//	name: year-end
//	priority: 10             # runs with a greater number go first
//	max_failed: 1%           # or 500 (items): more failures pause the run
//	canary: 100              # a spread sample goes first
//	canary_auto: true        # and releases the others when it stays within max_failed
//	order_by: customer       # items of the same value go one after the other; without a canary
//	partitions: 64           # values share so many lines; or values: [a, b], the only ones there may be
//	on_failure: stop         # what follows an item that failed is not tried; or continue
//	steps:
//	  - name: statement      # the endpoint's name when left out
//	    endpoint: statement
//	    chunk: 500           # or auto: found while running
//	    chunk_bytes: 512KiB
//	    chunk_time: 5s       # what a request should take, with chunk: auto
//	    in_flight: auto      # or a number
//	    rate: 1000           # items a second
//	    max_attempts: 3
//	    retry_backoff: 1s
//	    max_backoff: 5m
//	    retry_codes: [BUSY]  # tried again, although the service says no
//	    never_retry: [GONE]  # not tried again, although the service says yes
//	    timeout: 12m         # from the hand-out; longer than the service gives its handler
//
// Everything but the endpoint may be left out. With chunk_auto or in_flight_auto beside it, a number is the upper bound
// of what is found. Unknown fields, wrong kinds of values and values out of range are a
// *ParseError. Anchors, aliases, tags, merge keys and several documents are not part of plans.
func Parse(name string, text []byte) (*Plan, error) {
	r := &reader{plan: name, places: map[string]*token.Position{}}
	if len(text) > MaxPlanBytes {
		return nil, r.whole("it has %d bytes; a plan has at most %d", len(text), MaxPlanBytes)
	}
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	r.lines = strings.Split(strings.ReplaceAll(string(text), "\r\n", "\n"), "\n")
	if err := r.checkText(); err != nil {
		return nil, err
	}
	root, err := r.document(string(text))
	if err != nil {
		return nil, err
	}
	plan := &Plan{Name: name}
	if err := r.readPlan(root, plan); err != nil {
		return nil, err
	}
	if err := plan.Validate(); err != nil {
		return nil, r.locate(err)
	}
	return plan, nil
}

// checkText refuses what no YAML may contain.
func (r *reader) checkText() error {
	for i, line := range r.lines {
		column := 0
		for at, c := range line {
			column++
			_, size := utf8.DecodeRuneInString(line[at:])
			if c == utf8.RuneError && size == 1 {
				return r.fail(&token.Position{Line: i + 1, Column: column}, "this is not UTF-8")
			}
			if c < ' ' && c != '\t' || c == 0x7f {
				return r.fail(&token.Position{Line: i + 1, Column: column}, "a control character (%U) is not allowed", c)
			}
		}
	}
	return nil
}

// document returns the one node that the text consists of.
func (r *reader) document(text string) (ast.Node, error) {
	tokens := lexer.Tokenize(text)
	if err := r.checkTokens(tokens); err != nil {
		return nil, err
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		return nil, r.syntax(err)
	}
	var root ast.Node
	for _, doc := range file.Docs {
		switch {
		case doc.Body == nil:
		case root != nil:
			return nil, r.fail(doc.Body.GetToken().Position, "a second document; a plan is one")
		default:
			root = doc.Body
		}
	}
	if root == nil {
		return nil, r.whole("it is empty; a plan needs steps")
	}
	return root, nil
}

// checkTokens refuses what plans do not use, and nesting that would keep the parser busy.
func (r *reader) checkTokens(tokens token.Tokens) error {
	flow, dashes, line := 0, 0, 0
	for _, t := range tokens {
		if t.Position.Line != line {
			line, dashes = t.Position.Line, 0
		}
		switch t.Type {
		case token.AnchorType, token.AliasType:
			return r.fail(t.Position, "anchors and aliases are not part of plans; write the value out")
		case token.MergeKeyType:
			return r.fail(t.Position, "merge keys are not part of plans; write the fields out")
		case token.TagType, token.DirectiveType, token.MappingKeyType:
			return r.fail(t.Position, "%q is not part of plans", t.Value)
		case token.MappingStartType, token.SequenceStartType:
			flow++
		case token.MappingEndType, token.SequenceEndType:
			flow--
		case token.SequenceEntryType:
			dashes++
		}
		if flow > maxYAMLDepth || dashes > maxYAMLDepth {
			return r.fail(t.Position, "the nesting is deeper than %d", maxYAMLDepth)
		}
	}
	return nil
}

// reader keeps what errors need: the source lines, and where each field's value stands.
type reader struct {
	plan   string
	lines  []string
	places map[string]*token.Position
}

func (r *reader) whole(format string, args ...any) error {
	return &ParseError{Plan: r.plan, Problem: fmt.Sprintf(format, args...)}
}

func (r *reader) fail(at *token.Position, format string, args ...any) error {
	e := &ParseError{Plan: r.plan, Line: at.Line, Column: at.Column, Problem: fmt.Sprintf(format, args...)}
	if at.Line >= 1 && at.Line <= len(r.lines) {
		e.Source = r.lines[at.Line-1]
	}
	return e
}

// syntax turns the parser's error into one with our own source line.
func (r *reader) syntax(err error) error {
	var positioned yaml.Error
	if errors.As(err, &positioned) && positioned.GetToken() != nil {
		if at := r.tab(positioned.GetToken().Position.Line); at != nil {
			return r.fail(at, "a tab; YAML is indented with spaces, so put spaces in its place")
		}
		return r.fail(positioned.GetToken().Position, "%s", positioned.GetMessage())
	}
	return r.whole("%v", err)
}

// tab returns where a line has a tab before its first word, or nil.
func (r *reader) tab(line int) *token.Position {
	if line < 1 || line > len(r.lines) {
		return nil
	}
	text := r.lines[line-1]
	begin := text[:len(text)-len(strings.TrimLeft(text, " -\t"))]
	if at := strings.IndexByte(begin, '\t'); at >= 0 {
		return &token.Position{Line: line, Column: at + 1}
	}
	return nil
}

// locate gives a *FieldError the place of its field or, when the field is not there, of what should hold it.
func (r *reader) locate(err error) error {
	var field *FieldError
	if !errors.As(err, &field) {
		return err
	}
	problem := fmt.Sprintf("%s: %s", field.Field, field.Problem)
	for path := field.Field; path != ""; path = path[:max(strings.LastIndexAny(path, ".["), 0)] {
		if at, known := r.places[path]; known {
			return r.fail(at, "%s", problem)
		}
	}
	return r.whole("%s", problem)
}
