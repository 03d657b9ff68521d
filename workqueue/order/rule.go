// Package order knows by what items are put in lanes: the rule that a plan or a collector gives with order_by, the
// value that an item has for it, and the lane that a value stands in.
//
// Items of one lane are worked on strictly one at a time; what keeps them so is not this package's job. It has no
// state, reads nothing but what it is given, and is safe for concurrent use.
package order

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"unicode/utf8"
)

// Key is the order_by that stands for the item's key instead of a field of its payload.
const Key = "key"

// Bounds of a rule.
const (
	MaxByBytes    = 200
	MaxDepth      = 8
	MaxValues     = 1000
	MaxValueBytes = 200 // of one of a fixed list
	MaxPartitions = 65_536
)

// Rule says which items follow each other.
type Rule struct {
	By         string   `json:"by"`                   // a field of the payload, with dots in a path; or Key
	Values     []string `json:"values,omitempty"`     // the only values there may be; none: any
	Partitions int      `json:"partitions,omitempty"` // values share so many lanes, by their hash; 0: each has its own
}

// SettingError says what is wrong with a rule.
type SettingError struct {
	Field   string // order_by, values or partitions; of one value with its place, as in values[2]
	Problem string
}

func (e *SettingError) Error() string { return e.Field + ": " + e.Problem }

func settingError(field, format string, args ...any) error {
	return &SettingError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// Set reports whether there is a rule at all.
func (r *Rule) Set() bool { return r.By != "" || len(r.Values) > 0 || r.Partitions != 0 }

// Validate returns a *SettingError for the first thing that is wrong with a rule that is set.
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
			return settingError(field, "%.40q is no value: it is text of 1 to %d bytes", v, MaxValueBytes)
		case slices.Contains(r.Values[:i], v):
			return settingError(field, "%.40q stands there twice", v)
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
		return settingError("order_by", "%.40q is no field: its name has at most %d bytes", r.By, MaxByBytes)
	case slices.Contains(path, ""):
		return settingError("order_by", "%.60q is no field: it is a name, or names with a dot between them, like customer.id",
			r.By)
	case len(path) > MaxDepth:
		return settingError("order_by", "%.60q goes %d levels deep, and %d is the most", r.By, len(path), MaxDepth)
	}
	return nil
}

// Value returns what an item is put in order by: text as it is, a number as it is written, true or false. An item that
// has none, or one that is not listed, is a *ValueError.
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

// listed names the first few of a list.
func listed(values []string) string {
	const most = 10
	if len(values) <= most {
		return strings.Join(values, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(values[:most], ", "), len(values)-most)
}

// Lane is the lane that a value stands in. It is the same everywhere and indefinitely. Two values share one when their
// 64-bit hashes are the same, which is of no harm, or, with partitions, when their partitions are.
func (r *Rule) Lane(value string) int64 {
	if r.Partitions > 0 {
		return int64(Partition(value, r.Partitions))
	}
	return int64(hash(value))
}

// Partition is the one of n partitions, from 0, that a value belongs to: its 64-bit FNV-1a hash modulo n.
func Partition(value string, n int) int { return int(hash(value) % uint64(n)) }

func hash(value string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(value)) // never fails
	return h.Sum64()
}

// ValueError says why an item cannot be put in order.
type ValueError struct {
	Field   string // as the rule names it
	Problem string
}

func (e *ValueError) Error() string { return fmt.Sprintf("order_by %s: %s", e.Field, e.Problem) }
