package template

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxURL bounds the bytes of a URL.
const MaxURL = 8 << 10

// URL is a URL template. Its scheme, host and port have no variables.
type URL struct {
	base   *url.URL // up to the first variable
	pieces []urlPiece
}

type urlPiece struct {
	literal string
	operator
	uses []use
}

type use struct {
	variable
	shown   string // name in the template
	explode bool
	at      place
}

var (
	errScheme   = errors.New("want a URL that begins with http:// or https://")
	errFixed    = errors.New("scheme, host and port must be fixed text, with a / after them, not variables")
	errUser     = errors.New("a user or password does not belong in a URL; put a header with a secret in its place")
	errFragment = errors.New("a fragment, after #, is not sent; write %23 for the sign itself")
	errPort     = errors.New("the port is not within 1 to 65535")
	errHost     = errors.New("the host is not a name of letters, digits, dots and dashes, nor an address")
	errClimbs   = errors.New("a path with . or .. in it means another one; write that")
)

// ParseURL parses a template.
func ParseURL(text string, variables Variables) (*URL, error) {
	if len(text) > MaxURL {
		return nil, fmt.Errorf("it has %d bytes; at most %d are allowed", len(text), MaxURL)
	}
	u := &URL{}
	if err := u.parseBase(text); err != nil {
		return nil, err
	}
	return u, u.parsePieces(text, variables)
}

var expression = regexp.MustCompile(`\{[^{}]*\}`)

// parseBase parses the part before the first variable: variables cannot change the scheme or host.
func (u *URL) parseBase(text string) error {
	fixed, _, _ := strings.Cut(text, "{")
	scheme, rest, _ := strings.Cut(fixed, "://")
	if scheme != "http" && scheme != "https" {
		return errScheme
	}
	if i := strings.IndexAny(rest, `/?#\`); i < 0 || rest[i] != '/' {
		return errFixed
	}
	if strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c == 0x7f || c == '\\' }) {
		return errors.New("spaces, control characters and backslashes are not part of URLs")
	}
	base, err := url.Parse(fixed)
	switch {
	case err != nil:
		return errFixed
	case base.User != nil:
		return errUser
	case strings.Contains(expression.ReplaceAllString(text, ""), "#"):
		return errFragment
	}
	if err := checkHost(base); err != nil {
		return err
	}
	u.base = base
	path, _, _ := strings.Cut(expression.ReplaceAllString(text[len(scheme+"://"):], "x"), "?")
	if climbs(path) {
		return errClimbs
	}
	return nil
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?$`)

func checkHost(u *url.URL) error {
	if port := u.Port(); port != "" || strings.HasSuffix(u.Host, ":") {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil || port[0] == '0' {
			return errPort
		}
	}
	if _, err := netip.ParseAddr(u.Hostname()); err == nil || hostName.MatchString(u.Hostname()) {
		return nil
	}
	return errHost
}

// urlLiteral matches text between expressions.
var urlLiteral = regexp.MustCompile("^([^\\x00-\\x20\\x7f\"<>^`{|}\\\\%]|%[0-9A-Fa-f]{2})*$")

var errLiteral = errors.New("it is not an RFC 6570 template: braces go in pairs around a variable, and % before two " +
	"digits of an escaped character")

func (u *URL) parsePieces(text string, variables Variables) error {
	query, last := false, 0
	literal := func(text string) error {
		if !urlLiteral.MatchString(text) {
			return errLiteral
		}
		query = query || strings.Contains(text, "?")
		u.pieces = append(u.pieces, urlPiece{literal: text})
		return nil
	}
	for _, span := range expression.FindAllStringIndex(text, -1) {
		if err := literal(text[last:span[0]]); err != nil {
			return err
		}
		last = span[1]
		piece, err := parseExpression(text[span[0]+1:span[1]-1], variables, query)
		if err != nil {
			return err
		}
		query = query || piece.first == "?"
		u.pieces = append(u.pieces, piece)
	}
	return literal(text[last:])
}

// operator is how an expression is expanded: RFC 6570, appendix A, table 1.
type operator struct {
	first, separator string
	named            bool
	empty            string // follows the name of an empty value
}

func operatorOf(sign byte) (op operator, signed bool) {
	switch sign {
	case '.', '/':
		return operator{first: string(sign), separator: string(sign)}, true
	case ';':
		return operator{first: ";", separator: ";", named: true}, true
	case '?', '&':
		return operator{first: string(sign), separator: "&", named: true, empty: "="}, true
	}
	return operator{separator: ","}, false
}

func parseExpression(text string, variables Variables, query bool) (urlPiece, error) {
	var piece urlPiece
	if text == "" {
		return piece, errors.New("{} names no variable")
	}
	names := text
	op, signed := operatorOf(text[0])
	if piece.operator = op; signed {
		names = text[1:]
	}
	switch {
	case text[0] == '+' || text[0] == '#':
		return piece, fmt.Errorf("{%s} would insert a value unescaped, which could change the URL; write {%s}",
			text, text[1:])
	case text[0] == '?' && query:
		return piece, fmt.Errorf("{%s} writes a second ?; write {&%s}", text, names)
	case text[0] == '&' && !query:
		return piece, fmt.Errorf("{%s} has no ? before it; write {?%s}", text, names)
	}
	at := inPath
	switch {
	case piece.named:
		at = inNamed
	case query:
		at = inQuery
	}
	return piece, piece.parseUses(text, names, variables, at)
}

func (p *urlPiece) parseUses(text, names string, variables Variables, at place) error {
	for name := range strings.SplitSeq(names, ",") {
		if strings.Contains(name, ":") {
			return fmt.Errorf("{%s}: a part of a value, by a colon, cannot be had", text)
		}
		name, explode := strings.CutSuffix(name, "*")
		v, err := variables.parse(decoded(name), at)
		if err != nil {
			return err
		}
		if !urlLiteral.MatchString(name) || strings.ContainsAny(name, "/?#&=;@:") {
			return fmt.Errorf("{%s}: invalid variable name %q", text, name)
		}
		p.uses = append(p.uses, use{v, name, explode, at})
	}
	return nil
}

// Shown returns the URL's scheme and host, for errors.
func (u *URL) Shown() string { return u.base.Scheme + "://" + u.base.Host }

// Base returns the URL up to the first variable.
func (u *URL) Base() *url.URL {
	return new(*u.base)
}

// TooLongError means that an expanded URL exceeds MaxURL.
type TooLongError struct{ Bytes int }

func (e *TooLongError) Error() string {
	return fmt.Sprintf("the URL has %d bytes; at most %d are sent: put the values in the body, or request fewer at a time",
		e.Bytes, MaxURL)
}

// Expand inserts the values.
func (u *URL) Expand(in *Values) (*url.URL, error) {
	var b strings.Builder
	for i := range u.pieces {
		b.WriteString(u.pieces[i].literal)
		if err := u.pieces[i].expand(&b, in); err != nil {
			return nil, err
		}
	}
	text := b.String()
	if len(text) > MaxURL {
		return nil, &TooLongError{len(text)}
	}
	out, err := url.Parse(text)
	if err != nil || out.Scheme != u.base.Scheme || out.Host != u.base.Host || out.User != nil || out.Fragment != "" {
		return nil, &Error{Problem: "the values make no URL of the host that the plan names"}
	}
	if climbs(out.Path) {
		return nil, &Error{Problem: "the values make a path with . or .. in it, which means another one"}
	}
	return out, nil
}

func (p *urlPiece) expand(b *strings.Builder, in *Values) error {
	before := p.first
	for i := range p.uses {
		use := &p.uses[i]
		texts, err := use.escaped(in)
		if err != nil {
			return err
		}
		if len(texts) == 0 {
			continue
		}
		separator := ","
		if use.explode {
			separator = p.separator
		} else if p.named {
			texts = []string{p.name(use, strings.Join(texts, ","))}
		}
		if use.explode && p.named {
			for n := range texts {
				texts[n] = p.name(use, texts[n])
			}
		}
		b.WriteString(before)
		b.WriteString(strings.Join(texts, separator))
		before = p.separator
	}
	return nil
}

func (o *operator) name(u *use, text string) string {
	if text == "" {
		return u.shown + o.empty
	}
	return u.shown + "=" + text
}

// escaped returns a variable's escaped value, or a list's values; none if it is left out.
func (u *use) escaped(in *Values) ([]string, error) {
	value, there, err := u.value(in)
	if err != nil {
		return nil, err
	}
	if !there {
		if u.at != inNamed {
			err = u.fails("it has no value")
		}
		return nil, err
	}
	texts, ok := u.texts(value)
	switch {
	case !ok:
		return nil, u.fails("it is an object, which has no place in a URL")
	case u.at == inPath && (len(texts) == 0 || slices.Contains(texts, "")):
		return nil, u.fails("it is empty, and the path would be another one")
	}
	out := make([]string, len(texts))
	for i, text := range texts {
		if !utf8.ValidString(text) {
			return nil, u.fails("it is not UTF-8")
		}
		out[i] = escape(text)
	}
	return out, nil
}

// escape percent-encodes all except RFC 3986's unreserved characters.
func escape(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func (u *use) texts(value any) (texts []string, ok bool) {
	switch v := value.(type) {
	case []string:
		return v, true
	case []any:
		for _, entry := range v {
			text, ok := scalar(entry)
			if !ok {
				return nil, false
			}
			texts = append(texts, text)
		}
		return texts, true
	case json.RawMessage:
		return nil, false
	}
	text, ok := scalar(value)
	return []string{text}, ok
}

// climbs reports whether a path has . or .. segments, even for readers that accept escaped slashes or backslashes.
func climbs(path string) bool {
	if plain, err := url.PathUnescape(path); err == nil {
		path = plain
	}
	return slices.ContainsFunc(strings.FieldsFunc(path, func(c rune) bool { return c == '/' || c == '\\' || c == ';' }),
		func(segment string) bool { return segment == "." || segment == ".." })
}
