package gather

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tranchehq/tranche/gather/itemschema"
	"github.com/tranchehq/tranche/workqueue/order"
)

// Values of on_invalid, for items that do not fit the schema.
const (
	InvalidFail   = "fail"   // they fail with code invalid and are not sent
	InvalidReject = "reject" // the run is refused; the default, stored as ""
)

// Values of contract, for items without fields that a step's service requires.
const (
	ContractReject = "reject" // the run is refused; the default, stored as ""
	ContractWarn   = "warn"   // the run starts with a warning
	ContractOff    = "off"    // items are not compared with the service's contract
)

// Items describes the items of a plan's runs and how to read them.
type Items struct {
	Schema    json.RawMessage `json:"schema,omitempty"`                        // a JSON Schema; nil: any item
	OnInvalid string          `json:"on_invalid,omitempty" enum:"reject,fail"` // InvalidFail or ""
	// Contract is ContractWarn, ContractOff or "".
	Contract string `json:"contract,omitempty" enum:"reject,warn,off"`

	Encoding string `json:"encoding,omitempty"` // of the text; empty: UTF-8, or by the byte order mark
	Header   *bool  `json:"header,omitempty"`   // false: CSV without a header; nil: with one
	// Delimiter of CSV fields: comma, semicolon, tab or bar; empty: detected.
	Delimiter string            `json:"delimiter,omitempty"`
	Columns   []string          `json:"columns,omitempty"` // columns to keep; without a header, the names of all
	Rename    map[string]string `json:"rename,omitempty" want:"new names by old ones, like kontonr: id"`
	// Types converts fields to number, text, bool or json.
	Types map[string]string `json:"types,omitempty" want:"types of fields, like balance: number"`
	Sort  string            `json:"sort,omitempty"` // field to sort by
	Desc  bool              `json:"desc,omitempty"` // with Sort: descending
}

// HasHeader reports whether CSV starts with column names.
func (i *Items) HasHeader() bool { return i.Header == nil || *i.Header }

// canonicalHeader returns nil for CSV with a header.
func canonicalHeader(header *bool) *bool {
	if header == nil || *header {
		return nil
	}
	return header
}

func (i *Items) given() bool {
	return len(i.Schema) > 0 || i.OnInvalid != "" || i.Contract != "" || i.Encoding != "" || i.Header != nil ||
		i.Delimiter != "" || len(i.Columns) > 0 || len(i.Rename) > 0 || len(i.Types) > 0 || i.Sort != "" || i.Desc
}

func (i *Items) clone() Items {
	out := *i
	out.Schema, out.Columns = bytes.Clone(i.Schema), slices.Clone(i.Columns)
	out.Rename, out.Types = maps.Clone(i.Rename), maps.Clone(i.Types)
	return out
}

func encodings() []string {
	return []string{"utf-8", "latin-1", "windows-1252", "utf-16", "utf-16le", "utf-16be"}
}

func types() []string { return []string{"number", "text", "bool", "json"} }

const maxColumns = 10_000

var errOnInvalid = fmt.Errorf("want %s or %s", InvalidReject, InvalidFail)

func parseOnInvalid(text string) (string, error) {
	switch text {
	case "", InvalidReject:
		return "", nil
	case InvalidFail:
		return text, nil
	}
	return "", errOnInvalid
}

var errContract = fmt.Errorf("want %s, %s or %s", ContractReject, ContractWarn, ContractOff)

func parseContract(text string) (string, error) {
	switch text {
	case "", ContractReject:
		return "", nil
	case ContractWarn, ContractOff:
		return text, nil
	}
	return "", errContract
}

func parseEncoding(name string) (string, error) {
	word := strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	for also, is := range map[string]string{"utf8": "utf-8", "latin1": "latin-1", "iso-8859-1": "latin-1",
		"cp1252": "windows-1252", "utf16": "utf-16"} {
		if word == also {
			word = is
		}
	}
	if word == "" || slices.Contains(encodings(), word) {
		return word, nil
	}
	return "", fmt.Errorf("want one of %s", strings.Join(encodings(), ", "))
}

func delimiters() map[string]rune {
	return map[string]rune{"comma": ',', "semicolon": ';', "tab": '\t', "bar": '|'}
}

var errDelimiter = errors.New("want comma, semicolon, tab or bar, or the character itself")

// ParseDelimiter returns the name of a delimiter, given its name or character.
func ParseDelimiter(text string) (string, error) {
	for name, char := range delimiters() {
		if strings.EqualFold(text, name) || text == string(char) {
			return name, nil
		}
	}
	if text == "" {
		return "", nil
	}
	return "", errDelimiter
}

// Separator returns the delimiter, or 0 if it is detected.
func (i *Items) Separator() rune { return delimiters()[i.Delimiter] }

func (i *Items) checkReading(prefix string) error {
	if word, err := parseEncoding(i.Encoding); err != nil || word != i.Encoding {
		return fieldError(prefix+"encoding", "want one of %s; this is %.40q", strings.Join(encodings(), ", "), i.Encoding)
	}
	if word, err := ParseDelimiter(i.Delimiter); err != nil || word != i.Delimiter {
		return fieldError(prefix+"delimiter", "%v; this is %.40q", errDelimiter, i.Delimiter)
	}
	names := map[string]bool{}
	for _, name := range i.Columns {
		if err := checkColumn(prefix+"columns", name); err != nil {
			return err
		}
		if names[name] {
			return fieldError(prefix+"columns", "%.40q appears twice", name)
		}
		names[name] = true
	}
	if n := len(i.Columns) + len(i.Rename) + len(i.Types); n > maxColumns {
		return fieldError(prefix+"columns", "%d columns are named, with rename and types; at most %d are allowed", n,
			maxColumns)
	}
	if err := i.checkNames(prefix); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(i.Types)) {
		if err := checkColumn(prefix+"types", name); err != nil {
			return err
		}
		if !slices.Contains(types(), i.Types[name]) {
			return fieldError(prefix+"types", "%.40s: want one of %s; this is %.40q", name, strings.Join(types(), ", "),
				i.Types[name])
		}
	}
	if i.Sort != "" {
		return checkColumn(prefix+"sort", i.Sort)
	}
	return nil
}

func (i *Items) checkNames(prefix string) error {
	called := map[string]bool{}
	for _, old := range slices.Sorted(maps.Keys(i.Rename)) {
		err := cmp.Or(checkColumn(prefix+"rename", old), checkColumn(prefix+"rename", i.Rename[old]))
		if err == nil && called[i.Rename[old]] {
			err = fieldError(prefix+"rename", "two columns are renamed to %.40q", i.Rename[old])
		}
		if err != nil {
			return err
		}
		called[i.Rename[old]] = true
	}
	for _, name := range i.Columns { // without columns the row has both
		if _, moved := i.Rename[name]; called[name] && !moved && i.HasHeader() {
			return fieldError(prefix+"columns", "%.40q exists, and another column is renamed to it; rename it, too, or "+
				"leave it out", name)
		}
	}
	return nil
}

func checkColumn(field, name string) error {
	const most = 512
	if name == "" || len(name) > most || !utf8.ValidString(name) || strings.IndexByte(name, 0) >= 0 {
		return fieldError(field, "invalid column name %.40q: want 1 to %d bytes of text", name, most)
	}
	return nil
}

// check validates each setting and their combinations. Errors prefix the names of settings.
func (i *Items) check(prefix string) error {
	if err := i.checkReading(prefix); err != nil {
		return err
	}
	if i.OnInvalid != "" && i.OnInvalid != InvalidFail {
		return fieldError(prefix+"on_invalid", "%v; this is %.40q", errOnInvalid, i.OnInvalid)
	}
	if kept, err := parseContract(i.Contract); err != nil || kept != i.Contract {
		return fieldError(prefix+"contract", "%v; this is %.40q", errContract, i.Contract)
	}
	if len(i.Schema) > 0 {
		_, err := itemschema.Compile(i.Schema)
		if bad, ok := errors.AsType[*itemschema.Error](err); ok {
			return fieldError(prefix+"schema", "%s", bad.Reason)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *Plan) checkItems() error {
	if err := p.Items.check("items."); err != nil {
		return err
	}
	if p.Items.Desc && p.Items.Sort == "" {
		return fieldError("items.desc", "it is about the order of items, which have none; set items.sort (--sort FIELD), or "+
			"leave this out")
	}
	switch {
	case p.Items.OnInvalid == "":
	case len(p.Items.Schema) == 0:
		return fieldError("items.on_invalid", "there is no schema that items could not fit; set items.schema "+
			"(--schema FILE), or leave this out")
	case p.Order.Set():
		return fieldError("items.on_invalid", "it does not go with order_by: an item that is not worked on would be passed "+
			"by those behind it; have such items refused, or leave order_by out")
	}
	for i := range p.Steps {
		if p.Items.OnInvalid != "" && p.Steps[i].Optional {
			return fieldError("items.on_invalid", "it does not go with optional steps, like %s: what needs them would be asked "+
				"about items that do not fit; have such items refused, or leave optional out", p.Steps[i].Name)
		}
	}
	return nil
}

func byName(texts []string) map[string]string {
	all := map[string]string{}
	for _, text := range texts {
		name, value, _ := strings.Cut(text, "=")
		all[name] = value
	}
	return all
}

var errNoPair = errors.New("want NAME=VALUE")

func (o *Overrides) checkPairs() error {
	for field, texts := range map[string][]string{"rename": o.Rename, "types": o.Types} {
		seen := map[string]bool{}
		for _, text := range texts {
			name, _, found := strings.Cut(text, "=")
			if !found || name == "" || seen[name] {
				return fieldError(field, "%v, each name once; this is %.40q", errNoPair, text)
			}
			seen[name] = true
		}
	}
	return nil
}

func (o *Overrides) readSchema(text string) error {
	if o.Schema != nil {
		return errTwice
	}
	if !json.Valid([]byte(text)) {
		return errors.New("want a JSON Schema")
	}
	o.Schema = json.RawMessage(text)
	return nil
}

// canonicalText returns the stored form, or text unchanged if it is invalid, for Validate to reject.
func canonicalText(text string, parse func(string) (string, error)) string {
	if form, err := parse(text); err == nil {
		return form
	}
	return text
}

// Values of on_failure, for the items after one that failed.
const (
	FailureStop     = "stop"     // they end without being tried
	FailureContinue = "continue" // they are processed; the default, stored as ""
)

var errOnFailure = fmt.Errorf("want %s or %s", FailureContinue, FailureStop)

// ParseOnFailure returns the stored form of on_failure.
func ParseOnFailure(text string) (string, error) {
	switch text {
	case "", FailureContinue:
		return "", nil
	case FailureStop:
		return text, nil
	}
	return "", errOnFailure
}

// Stops reports whether items after a failed one end.
func (p *Plan) Stops() bool { return p.OnFailure == FailureStop }

func (p *Plan) checkOrder() error {
	if p.OnFailure != "" && p.OnFailure != FailureStop {
		return fieldError("on_failure", "%v; this is %.40q", errOnFailure, p.OnFailure)
	}
	if !p.Order.Set() {
		if p.OnFailure != "" {
			return fieldError("on_failure", "nothing follows an item that failed when items have no order; set order_by, like "+
				"order_by: customer, or leave this out")
		}
		return nil
	}
	if p.Order.By == "" {
		field := "values"
		if p.Order.Partitions != 0 {
			field = "partitions"
		}
		return fieldError(field, "it goes with order_by, which is missing; name the field that items are put in order by, "+
			"like order_by: customer, or leave this out")
	}
	err := p.Order.Validate()
	if wrong, ok := errors.AsType[*order.SettingError](err); ok {
		return fieldError(wrong.Field, "%s", wrong.Problem)
	}
	if p.Canary > 0 {
		return fieldError("canary", "it does not go with order_by: its sample is spread over all items, and would be "+
			"processed before the items ahead of it; leave one of the two out")
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		switch {
		case s.Barrier && len(s.Needs) > 0:
			return fieldError(stepField(i)+".barrier", "it does not go with order_by: the step waits for all items, and items "+
				"wait until it has done those before them; leave one of the two out")
		case s.Optional && p.Stops():
			return fieldError(stepField(i)+".optional", "it does not go with on_failure: stop, since what comes after the step "+
				"would continue for items that are ended; leave one of the two out")
		}
	}
	return nil
}

// Ordered returns a valid plan with each step after those it needs, and otherwise in the given order.
func (p *Plan) Ordered() *Plan {
	out := p.clone()
	rest, placed := out.Steps, map[string]bool{}
	out.Steps = make([]Step, 0, len(rest))
	for len(rest) > 0 {
		next := slices.IndexFunc(rest, func(s Step) bool {
			return !slices.ContainsFunc(s.Needs, func(need string) bool { return !placed[need] })
		})
		if next < 0 {
			panic("gather: Ordered of a plan whose steps wait for each other")
		}
		placed[rest[next].Name] = true
		out.Steps = append(out.Steps, rest[next])
		rest = slices.Delete(rest, next, next+1)
	}
	return out
}
