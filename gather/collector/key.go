package collector

import (
	"fmt"
	"strconv"

	"github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/order"
)

// Key returns the key that an operation belongs to: its own, or the one that its payload has by order_by. With
// partitions that is like 17/64, the seventeenth of 64 counted from 0: it is the same everywhere and for ever.
//
// The error is an *order.ValueError for a payload without a value, or with one that is not listed.
func Key(spec *collector.CollectorSpec, own string, payload []byte) (string, error) {
	by := spec.OrderBy
	if by == nil {
		return own, nil
	}
	rule := order.Rule{By: by.Field, Values: by.Values, Partitions: by.Partitions}
	value, err := rule.Value(own, payload)
	if err != nil {
		return "", err
	}
	if by.Partitions > 0 {
		return strconv.Itoa(order.Partition(value, by.Partitions)) + "/" + strconv.Itoa(by.Partitions), nil
	}
	if len(value) > collector.MaxOpKey {
		return "", &order.ValueError{Field: by.Field, Problem: fmt.Sprintf("the value has %d bytes, and a key has at most "+
			"%d; with partitions it may be longer", len(value), collector.MaxOpKey)}
	}
	return value, nil
}

// OwnKey reports whether operations have to bring a key of their own.
func OwnKey(spec *collector.CollectorSpec) bool {
	return spec.OrderBy == nil || spec.OrderBy.Field == order.Key
}

// Fold returns what an operation is folded by, with those of its key that have the same: the value of fold_by, or else
// that of order_by, or the operation's own key. It is empty when the collector does not fold. The error is an
// *order.ValueError.
func Fold(spec *collector.CollectorSpec, own string, payload []byte) (string, error) {
	if spec.Fold == "" {
		return "", nil
	}
	value, err := valueOf(spec, spec.FoldBy, own, payload)
	if err != nil {
		return "", err
	}
	if value == "" || len(value) > collector.MaxOpKey {
		return "", &order.ValueError{Field: spec.FoldBy, Problem: fmt.Sprintf("the value has %d bytes; what operations are "+
			"folded by has 1 to %d", len(value), collector.MaxOpKey)}
	}
	return value, nil
}

// valueOf is the value of a field, or without one that of order_by, or the operation's own key.
func valueOf(spec *collector.CollectorSpec, by, own string, payload []byte) (string, error) {
	if by == "" && spec.OrderBy != nil {
		by = spec.OrderBy.Field
	}
	if by == "" {
		return own, nil
	}
	rule := order.Rule{By: by}
	return rule.Value(own, payload)
}
