// Package order computes the lanes of items: from the rule given by order_by in a plan or collector, an item's value
// for it, and the lane of that value. It does not enforce that items of a lane go one at a time. It has no state and
// is safe for concurrent use.
package order

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Key is the order_by that means the item's key instead of a payload field.
const Key = "key"

// Bounds of a rule.
const (
	MaxByBytes    = 200
	MaxDepth      = 8
	MaxValues     = 1000
	MaxValueBytes = 200 // of each listed value
	MaxPartitions = 65_536
)

// Rule says which items share a lane.
type Rule struct {
	By         string   `json:"by"`                   // a payload field, with dots in a path; or Key
	Values     []string `json:"values,omitempty"`     // the only permitted values; none: any
	Partitions int      `json:"partitions,omitempty"` // hash values into N lanes; 0: one lane for each value
}

// SettingError is an error of a rule.
type SettingError struct {
	Field   string // order_by, values or partitions; of a single value with its index, as in values[2]
	Problem string
}

func (e *SettingError) Error() string { return e.Field + ": " + e.Problem }

func settingError(field, format string, args ...any) error {
	return &SettingError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// Set reports whether there is a rule.
func (r *Rule) Set() bool { return r.By != "" || len(r.Values) > 0 || r.Partitions != 0 }

// Validate returns a *SettingError for the first error of a rule that is set.
func (r *Rule) Validate() error {
	if err := r.validateBy(); err != nil {
		return err
	}
	switch {
	case r.Partitions < 0 || r.Partitions > MaxPartitions:
		return settingError("partitions", "%d; it is 1 to %d, or left out", r.Partitions, MaxPartitions)
	case r.Partitions > 0 && len(r.Values) > 0:
		return settingError("partitions", "it does not go with values: give a fixed list, or a number of lanes that all "+
			"values share")
	case len(r.Values) > MaxValues:
		return settingError("values", "%d values; at most %d can be listed, and with partitions any number shares "+
			"lanes", len(r.Values), MaxValues)
	}
	for i, v := range r.Values {
		field := fmt.Sprintf("values[%d]", i)
		switch {
		case v == "" || len(v) > MaxValueBytes || !utf8.ValidString(v) || strings.ContainsRune(v, 0):
			return settingError(field, "%.40q is not a value: it is text of 1 to %d bytes", v, MaxValueBytes)
		case slices.Contains(r.Values[:i], v):
			return settingError(field, "%.40q appears twice", v)
		}
	}
	return nil
}

func (r *Rule) validateBy() error {
	path := strings.Split(r.By, ".")
	switch {
	case r.By == "":
		return settingError("order_by", "it is missing, and what goes with it is there; name the field that items are "+
			"put in order by")
	case len(r.By) > MaxByBytes || !utf8.ValidString(r.By) || strings.ContainsRune(r.By, 0):
		return settingError("order_by", "%.40q is not a field: its name has at most %d bytes", r.By, MaxByBytes)
	case slices.Contains(path, ""):
		return settingError("order_by", "%.60q is not a field: use a name, or names with dots between them, like customer.id",
			r.By)
	case len(path) > MaxDepth:
		return settingError("order_by", "%.60q goes %d levels deep, and %d is the most", r.By, len(path), MaxDepth)
	}
	return nil
}

// Value returns an item's value for the rule: unchanged text, a number as written, true or false. It returns a
// *ValueError for an item without a value, or with one not listed.
func (r *Rule) Value(key string, payload []byte) (string, error) {
	value := key
	if r.By != Key {
		var err error
		if value, err = field(payload, strings.Split(r.By, ".")); err != nil {
			return "", &ValueError{Field: r.By, Problem: err.Error()}
		}
	}
	if len(r.Values) > 0 && !slices.Contains(r.Values, value) {
		return "", &ValueError{Field: r.By, Problem: fmt.Sprintf("%.60q is none of the values that are listed: %s",
			value, listed(r.Values))}
	}
	return value, nil
}

func listed(values []string) string {
	const most = 10
	if len(values) <= most {
		return strings.Join(values, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(values[:most], ", "), len(values)-most)
}

// Lane returns the lane of a value, the same on every node and in every version. Two values share a lane if their
// 64-bit hashes, or with partitions their partitions, are equal; that is harmless.
func (r *Rule) Lane(value string) int64 {
	if r.Partitions > 0 {
		return int64(Partition(value, r.Partitions))
	}
	return int64(hash(value))
}

// Partition returns a value's partition of n, from 0: its 64-bit FNV-1a hash modulo n.
func Partition(value string, n int) int { return int(hash(value) % uint64(n)) }

func hash(value string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(value)) // never fails
	return h.Sum64()
}

// ValueError is why an item has no lane.
type ValueError struct {
	Field   string // as in the rule
	Problem string
}

func (e *ValueError) Error() string { return fmt.Sprintf("order_by %s: %s", e.Field, e.Problem) }

// field returns the text of a field of a JSON object. Of duplicate names the last counts, as in most JSON readers.
func field(payload []byte, path []string) (string, error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(payload), jsontext.AllowDuplicateNames(true),
		jsontext.AllowInvalidUTF8(true))
	value, err := find(d, path)
	if _, ours := errors.AsType[*problem](err); err == nil || ours {
		return value, err
	}
	if errors.Is(err, io.EOF) {
		return "", &problem{"the payload is empty"}
	}
	return "", &problem{"the payload is not JSON: " + err.Error()}
}

// problem is an error of an item, not of its JSON syntax.
type problem struct{ text string }

func (p *problem) Error() string { return p.text }

func find(d *jsontext.Decoder, path []string) (value string, err error) {
	if kind := d.PeekKind(); kind != '{' {
		if err := d.SkipValue(); err != nil {
			return "", err
		}
		return "", &problem{fmt.Sprintf("there is %s where an object with field %.60q should be", nameOf(kind), path[0])}
	}
	if _, err := d.ReadToken(); err != nil {
		return "", err
	}
	missing := error(&problem{fmt.Sprintf("there is no field %.60q", path[0])})
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return "", err
		}
		if name.String() != path[0] {
			if err := d.SkipValue(); err != nil {
				return "", err
			}
			continue
		}
		missing = nil
		if len(path) > 1 {
			value, err = find(d, path[1:])
		} else {
			value, err = scalar(d, path[0])
		}
		if _, ours := errors.AsType[*problem](err); ours {
			missing = err
		} else if err != nil {
			return "", err
		}
	}
	if _, err := d.ReadToken(); err != nil {
		return "", err
	}
	return value, missing
}

func scalar(d *jsontext.Decoder, name string) (string, error) {
	switch kind := d.PeekKind(); kind {
	case '"', '0', 't', 'f':
		token, err := d.ReadToken()
		if err != nil {
			return "", err
		}
		if text := token.String(); text != "" {
			return text, nil
		}
		return "", &problem{fmt.Sprintf("field %.60q is empty", name)}
	default:
		if err := d.SkipValue(); err != nil {
			return "", err
		}
		return "", &problem{fmt.Sprintf("field %.60q is %s; text, a number, true or false can be put in order by", name,
			nameOf(kind))}
	}
}

func nameOf(kind jsontext.Kind) string {
	switch kind {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case 'n':
		return "null"
	case '"':
		return "text"
	case '0':
		return "a number"
	default:
		return "true or false"
	}
}
