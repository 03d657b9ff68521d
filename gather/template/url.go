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

	"github.com/yosida95/uritemplate/v3"
)

// MaxURL is the longest URL that is asked for, in bytes.
const MaxURL = 8 << 10

// URL is a template of URLs. Scheme, host and port stand in it as they are.
type URL struct {
	base     *url.URL // up to the first variable
	template *uritemplate.Template
	uses     []use
}

// use is a variable in an expression.
type use struct {
	variable
	raw string // the name as the template has it
	at  place
}

var (
	errScheme   = errors.New("want a URL that begins with http:// or https://")
	errFixed    = errors.New("scheme, host and port are to stand there as they are, with the / after them, before any variable")
	errUser     = errors.New("a user or password does not belong in a URL; put a header with a secret in its place")
	errFragment = errors.New("a fragment, after #, is not sent; write %23 for the sign itself")
	errPort     = errors.New("the port is not within 1 to 65535")
	errHost     = errors.New("the host is not a name of letters, digits, dots and dashes, nor an address")
	errClimbs   = errors.New("a path with . or .. in it means another one; write that")
)

// ParseURL reads a template.
func ParseURL(text string, variables Variables) (*URL, error) {
	if len(text) > MaxURL {
		return nil, fmt.Errorf("it has %d bytes; at most %d are allowed", len(text), MaxURL)
	}
	u := &URL{}
	if err := u.parseBase(text); err != nil {
		return nil, err
	}
	if err := u.parseUses(text, variables); err != nil {
		return nil, err
	}
	var err error
	if u.template, err = uritemplate.New(hyphens(text)); err != nil {
		return nil, fmt.Errorf("it is no template by RFC 6570: %s", strings.TrimPrefix(err.Error(), "uritemplate: "))
	}
	return u, nil
}

// expression is what stands between braces in a template.
var expression = regexp.MustCompile(`\{[^{}]*\}`) //nolint:gochecknoglobals // never changed

// hyphens escapes those in the names of variables: steps may have them, and the RFC has no place for them.
func hyphens(text string) string {
	return expression.ReplaceAllStringFunc(text, func(e string) string { return strings.ReplaceAll(e, "-", "%2D") })
}

// parseBase reads what stands before the first variable: variables can change neither whom is asked nor how.
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

// hostName is a name as DNS has it.
var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?$`) //nolint:gochecknoglobals // never changed

func checkHost(u *url.URL) error {
	if port := u.Port(); port != "" || strings.HasSuffix(u.Host, ":") {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return errPort
		}
	}
	if _, err := netip.ParseAddr(u.Hostname()); err == nil || hostName.MatchString(u.Hostname()) {
		return nil
	}
	return errHost
}

func (u *URL) parseUses(text string, variables Variables) error {
	query := false
	last := 0
	for _, span := range expression.FindAllStringIndex(text, -1) {
		query = query || strings.Contains(text[last:span[0]], "?")
		last = span[1]
		if err := u.parseExpression(text[span[0]+1:span[1]-1], variables, &query); err != nil {
			return err
		}
	}
	if rest := text[last:]; query && strings.Contains(rest, "?") && strings.Contains(text[:last], "{?") {
		return errors.New("a ? stands after {?…}, which writes one; use & there")
	}
	return nil
}

func (u *URL) parseExpression(text string, variables Variables, query *bool) error {
	if text == "" {
		return errors.New("{} names no variable")
	}
	at, names := inPath, text
	if *query {
		at = inQuery
	}
	switch text[0] {
	case '+', '#':
		return fmt.Errorf("{%s} would put a value there as it is, which could make another URL of it; write {%s}", text, text[1:])
	case '?':
		if *query {
			return fmt.Errorf("{%s} writes a second ?; write {&%s}", text, text[1:])
		}
		*query, at, names = true, inNamed, text[1:]
	case '&':
		if !*query {
			return fmt.Errorf("{%s} has no ? before it; write {?%s}", text, text[1:])
		}
		at, names = inNamed, text[1:]
	case ';':
		at, names = inNamed, text[1:]
	case '.', '/':
		names = text[1:]
	}
	for raw := range strings.SplitSeq(names, ",") {
		if strings.Contains(raw, ":") {
			return fmt.Errorf("{%s}: a part of a value, by a colon, cannot be had", text)
		}
		name := strings.TrimSuffix(raw, "*")
		v, err := variables.parse(decoded(name), at)
		if err != nil {
			return err
		}
		u.uses = append(u.uses, use{v, strings.ReplaceAll(name, "-", "%2D"), at})
	}
	return nil
}

// Host is the host of the URL, with its port when it has one, in lower case.
func (u *URL) Host() string { return strings.ToLower(u.base.Host) }

// Shown is the URL without what the variables put into it, for errors.
func (u *URL) Shown() string { return u.base.Scheme + "://" + u.base.Host }

// Base is the URL up to the first variable.
func (u *URL) Base() *url.URL {
	base := *u.base
	return &base
}

// TooLongError says that a URL became longer than what servers take.
type TooLongError struct{ Bytes int }

func (e *TooLongError) Error() string {
	return fmt.Sprintf("the URL has %d bytes; at most %d are sent: put the values in the body, or ask for fewer at once", e.Bytes, MaxURL)
}

// Expand fills in the values.
func (u *URL) Expand(in *Values) (*url.URL, error) {
	values := make(uritemplate.Values, len(u.uses))
	for i := range u.uses {
		value, there, err := u.uses[i].expanded(in)
		if err != nil {
			return nil, err
		}
		if there {
			values[u.uses[i].raw] = value
		}
	}
	text, err := u.template.Expand(values)
	if err != nil {
		return nil, &Error{Problem: "a value cannot be written into the URL: it is not UTF-8"}
	}
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

// expanded returns a variable's value as the template takes it.
func (u *use) expanded(in *Values) (uritemplate.Value, bool, error) {
	value, there, err := u.value(in)
	if err != nil {
		return uritemplate.Value{}, false, err
	}
	if !there {
		if u.at != inNamed {
			err = u.fails("it has no value")
		}
		return uritemplate.Value{}, false, err
	}
	texts, list, ok := u.texts(value)
	switch {
	case !ok:
		return uritemplate.Value{}, false, u.fails("it is an object, which has no place in a URL")
	case u.at == inPath && (len(texts) == 0 || slices.Contains(texts, "")):
		return uritemplate.Value{}, false, u.fails("it is empty, and the path would be another one")
	case list:
		return uritemplate.List(texts...), len(texts) > 0, nil
	}
	return uritemplate.String(texts[0]), true, nil
}

func (u *use) texts(value any) (texts []string, list, ok bool) {
	switch v := value.(type) {
	case []string:
		return v, true, true
	case []any:
		for _, entry := range v {
			text, ok := scalar(entry)
			if !ok {
				return nil, true, false
			}
			texts = append(texts, text)
		}
		return texts, true, true
	case json.RawMessage:
		return nil, false, false
	}
	text, ok := scalar(value)
	return []string{text}, false, ok
}

// climbs reports whether a path has . or .. among its segments, to readers that take an escaped or a reversed slash for
// one.
func climbs(path string) bool {
	if plain, err := url.PathUnescape(path); err == nil {
		path = plain
	}
	return slices.ContainsFunc(strings.FieldsFunc(path, func(c rune) bool { return c == '/' || c == '\\' || c == ';' }),
		func(segment string) bool { return segment == "." || segment == ".." })
}
