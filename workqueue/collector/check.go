package collector

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// same reports whether keys are made the same way.
func (k *OpKeying) same(other *OpKeying) bool {
	if k == nil || other == nil {
		return k == other
	}
	return k.Field == other.Field && k.Partitions == other.Partitions && slices.Equal(k.Values, other.Values)
}

// validate returns the rate in calls a second. It checks what the store relies on; what is wrong with a text of people
// is better told by whoever reads it.
func (c *Text) validate() (rate float64, err error) {
	s := &c.Spec
	switch {
	case !validCollectorName(c.Name):
		return 0, &workqueue.SettingError{Detail: fmt.Sprintf(
			"%.80q is no name of a collector; give 1 to 64 of A-Z a-z 0-9 _ -", c.Name)}
	case s.Endpoint == "" || !pg.ValidText(s.Endpoint):
		return 0, c.wrong("endpoint is %.80q; name the endpoint that takes the operations", s.Endpoint)
	case !pg.ValidText(c.Source) || len(c.Source) > maxCollectorText:
		return 0, c.wrong("its text must be UTF-8 without NUL of at most %d bytes", maxCollectorText)
	case s.Order != OrderFIFO && s.Order != OrderPriority:
		return 0, c.wrong("order is %.40q; give %s or %s", s.Order, OrderFIFO, OrderPriority)
	case s.MinSize > s.MaxSize:
		return 0, c.wrong("min_size is %d, which is more than max_size, %d", s.MinSize, s.MaxSize)
	case s.MaxBackoff < s.Backoff:
		return 0, c.wrong("max_backoff is %s, which is less than backoff, %s", s.MaxBackoff, s.Backoff)
	}
	if kind, _ := workqueue.TargetKind(s.Endpoint); kind != workqueue.KindEndpoint {
		return 0, c.wrong("endpoint is %.80q; only endpoints of services take operations", s.Endpoint)
	}
	if err := c.checkNumbers(); err != nil {
		return 0, err
	}
	if err := cmp.Or(c.checkKeying(), c.checkFold()); err != nil {
		return 0, err
	}
	return ParseCallRate(s.Rate)
}

func (c *Text) wrong(format string, args ...any) error {
	return &workqueue.SettingError{Detail: fmt.Sprintf("collector %s: %s", c.Name, fmt.Sprintf(format, args...))}
}

func (c *Text) checkNumbers() error {
	s := &c.Spec
	for _, n := range []struct {
		name       string
		value, max int
	}{
		{"min_size", s.MinSize, MaxFlushSize},
		{"max_size", s.MaxSize, MaxFlushSize},
		{"in_flight", s.InFlight, MaxFlushes},
		{"max_attempts", s.MaxAttempts, MaxFlushAttempts},
	} {
		if n.value < 1 || n.value > n.max {
			return c.wrong("%s is %d; give 1 to %d", n.name, n.value, n.max)
		}
	}
	for _, d := range []struct {
		name       string
		value      Span
		least, max time.Duration
	}{
		{"max_age", s.MaxAge, 0, MaxCollectorSpan},
		{"backoff", s.Backoff, 0, MaxCollectorSpan},
		{"max_backoff", s.MaxBackoff, 0, MaxCollectorSpan},
		{"dedupe", s.Dedupe, 0, MaxCollectorSpan},
		{"timeout", s.Timeout, time.Millisecond, MaxFlushTimeout},
	} {
		if v := time.Duration(d.value); v < d.least || v > d.max {
			return c.wrong("%s is %s; give %s to %s", d.name, d.value, d.least, d.max)
		}
	}
	return nil
}

func (c *Text) checkKeying() error {
	k := c.Spec.OrderBy
	switch {
	case k == nil:
		return nil
	case k.Field == "" || !pg.ValidText(k.Field):
		return c.wrong("order_by.field is %.80q; name a field of the payload", k.Field)
	case len(k.Values) > 0 && k.Partitions != 0:
		return c.wrong("order_by has values and partitions; give one of them")
	case k.Partitions < 0 || k.Partitions > maxCollectorParts:
		return c.wrong("order_by.partitions is %d; give 1 to %d", k.Partitions, maxCollectorParts)
	}
	return nil
}

// checkFold holds what is folded to an order in which newer data never goes before older.
func (c *Text) checkFold() error {
	s := &c.Spec
	switch {
	case s.Fold == "" && s.FoldBy != "":
		return c.wrong("fold_by is %.80q, and fold is missing; give %s or %s", s.FoldBy, FoldLast, FoldMerge)
	case s.Fold == "":
		return nil
	case s.Fold != FoldLast && s.Fold != FoldMerge:
		return c.wrong("fold is %.40q; give %s or %s", s.Fold, FoldLast, FoldMerge)
	case !pg.ValidText(s.FoldBy):
		return c.wrong("fold_by is %.80q; name a field of the payload", s.FoldBy)
	case !s.Strict || s.Order != OrderFIFO:
		return c.wrong("fold goes with strict, and with order %s: else an older operation would go after a newer one",
			OrderFIFO)
	}
	return nil
}

// validCollectorName takes what is one token of a NATS subject, and of a path.
func validCollectorName(name string) bool {
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return len(name) >= 1 && len(name) <= 64
}

// check holds operations to what can be stored.
func (o *Op) check() error {
	switch {
	case len(o.ID) > MaxOpID || !pg.ValidText(o.ID):
		return &workqueue.SettingError{Detail: fmt.Sprintf(
			"the id %.60q of an operation is no UTF-8 without NUL of at most %d bytes", o.ID,
			MaxOpID)}
	case o.Key == "" || len(o.Key) > MaxOpKey || !pg.ValidText(o.Key):
		return &workqueue.SettingError{Detail: fmt.Sprintf(
			"operation %.60q has the key %.60q; give UTF-8 without NUL of 1 to %d bytes", o.ID,
			o.Key, MaxOpKey)}
	case len(o.Payload) > MaxOpPayload:
		return &workqueue.SettingError{Detail: fmt.Sprintf(
			"the payload of operation %.60q has %d bytes; at most %d are taken", o.ID,
			len(o.Payload), MaxOpPayload)}
	case len(o.Payload) > 0 && !jsontext.Value(o.Payload).IsValid():
		return &workqueue.SettingError{Detail: fmt.Sprintf("the payload of operation %.60q is not JSON", o.ID)}
	case len(o.Fold) > MaxOpKey || !pg.ValidText(o.Fold):
		return &workqueue.SettingError{Detail: fmt.Sprintf(
			"what operation %.60q is folded by, %.60q, is no UTF-8 without NUL of at most %d bytes", o.ID, o.Fold, MaxOpKey)}
	case o.Priority < 0 || o.Priority > MaxOpPriority:
		return &workqueue.SettingError{Detail: fmt.Sprintf(
			"the priority of operation %.60q is %d; give 0 to %d, the highest first", o.ID,
			o.Priority, MaxOpPriority)}
	}
	return nil
}
