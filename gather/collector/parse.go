// Package collector reads what people write of collectors: how operations are gathered by their keys, and flushed to an
// endpoint in lists.
//
// [Parse] reads a collector from YAML, or JSON, into what the store keeps, with every default filled in, and says where
// in it something is wrong. [Key] says which key an operation belongs to.
//
// Not its job: the database, and flushing anything.
//
// Concurrency: it has no state.
package collector

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/gather/template"
	"github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/order"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// Limits of the YAML, and of what stands in it beside the limits of the store.
const (
	MaxBytes = 64 << 10
	// The least that a collector may be given for any of its times.
	MinTime = 10 * time.Millisecond

	maxCodes       = 100
	maxParams      = 100
	maxParamsBytes = 16 << 10
)

// errorKind is what errors call the input.
const errorKind = "collector"

// Parse reads a collector. The name is what errors call the input, and the collector's own unless it has a name field.
//
//	name: notify             # 1 to 64 of A-Z a-z 0-9 _ -
//	endpoint: notify         # required: what is asked, with a list
//	params: {channel: mail}  # what each request carries along
//	min_size: 100            # flush a key when so many operations wait,
//	max_age: 10s             # or when the oldest has waited so long
//	max_size: 500            # and never more than this at once
//	in_flight: 16            # flushes at once
//	rate: 50/m               # calls, over all nodes
//	max_attempts: 5          # then an operation is parked
//	backoff: 1s              # before the second try; doubled with each
//	max_backoff: 5m
//	timeout: 1m              # of a flush
//	dedupe: 24h              # how long ids are remembered
//	order: fifo              # or priority
//	strict: false            # true: a failed operation holds its key up
//	order_by: customer.id    # the key is this field of the payload
//	partitions: 64           # whose values share so many keys; or values: [eu, us]
//	fold: last               # operations of a key go as one: the last, or their payloads merged (merge)
//	fold_by: customer.id     # those with the same value of this field; without it, of that of order_by
//	enrich:                  # what is stored instead of the payload
//	  sql: {source: crm, query: "SELECT id, name FROM customer WHERE id = ANY($1)"}
//	  payload: {change: "{item}", name: "{parts.sql.name}"}
//	retry_codes: [BUSY]      # tried again, although the service says no
//	never_retry: [GONE]      # not tried again, although the service says yes
//
// Everything but the endpoint may be left out. What is wrong is a *strictyaml.Error.
func Parse(name string, text []byte) (*collector.CollectorSpec, error) {
	doc, err := strictyaml.Open(errorKind, name, text, MaxBytes)
	if err != nil {
		return nil, err
	}
	spec := &collector.CollectorSpec{Name: name, Dedupe: collector.DefaultDedupe}
	var keying order.Rule
	if err := doc.Root.Fields(fields(spec, &keying)...); err != nil {
		return nil, err
	}
	if keying.Set() {
		spec.OrderBy = &collector.OpKeying{Field: keying.By, Values: keying.Values, Partitions: keying.Partitions}
	}
	if err := check(doc, spec, &keying); err != nil {
		return nil, err
	}
	whole := spec.WithDefaults()
	return &whole, nil
}

func fields(s *collector.CollectorSpec, keying *order.Rule) []strictyaml.Field {
	const longest = collector.MaxCollectorSpan
	return []strictyaml.Field{
		{Name: "name", Read: strictyaml.Text(&s.Name)},
		{Name: "endpoint", Read: strictyaml.Text(&s.Endpoint)},
		{Name: "params", Read: params(&s.Params)},
		{Name: "min_size", Read: strictyaml.Number(&s.MinSize, 1, collector.MaxFlushSize)},
		{Name: "max_size", Read: strictyaml.Number(&s.MaxSize, 1, collector.MaxFlushSize)},
		{Name: "max_age", Read: span(&s.MaxAge, MinTime, longest)},
		{Name: "in_flight", Read: strictyaml.Number(&s.InFlight, 1, collector.MaxFlushes)},
		{Name: "rate", Read: rate(&s.Rate)},
		{Name: "max_attempts", Read: strictyaml.Number(&s.MaxAttempts, 1, collector.MaxFlushAttempts)},
		{Name: "backoff", Read: span(&s.Backoff, MinTime, longest)},
		{Name: "max_backoff", Read: span(&s.MaxBackoff, MinTime, longest)},
		{Name: "timeout", Read: span(&s.Timeout, MinTime, collector.MaxFlushTimeout)},
		{Name: "dedupe", Read: span(&s.Dedupe, 0, longest)},
		{Name: "order", Read: strictyaml.OneOf(&s.Order, collector.OrderFIFO, collector.OrderPriority)},
		{Name: "strict", Read: strictyaml.Truth(&s.Strict)},
		{Name: "order_by", Read: strictyaml.Text(&keying.By)},
		{Name: "values", Read: strictyaml.SomeTexts(&keying.Values)},
		{Name: "partitions", Read: strictyaml.Number(&keying.Partitions, 1, order.MaxPartitions)},
		{Name: "enrich", Read: enrichment(&s.Enrich)},
		{Name: "fold", Read: strictyaml.OneOf(&s.Fold, collector.FoldLast, collector.FoldMerge)},
		{Name: "fold_by", Read: strictyaml.Text(&s.FoldBy)},
		{Name: "retry_codes", Read: codes(&s.RetryCodes)},
		{Name: "never_retry", Read: codes(&s.NeverRetry)},
	}
}

func span(into *collector.Span, least, most time.Duration) func(strictyaml.Value) error {
	return strictyaml.Duration((*time.Duration)(into), least, most)
}

func rate(into *string) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		text, ok := v.Plain()
		if !ok || text == "" {
			return v.Wrong("calls in a time, like 10/s, 50/m, 100/h or 500/d")
		}
		if _, err := collector.ParseCallRate(text); err != nil {
			return v.Fail("want calls in a time, like 10/s, 50/m, 100/h or 500/d, at least %g and at most %d a second; "+
				"this is %.40q", pace.MinCallRate, pace.MaxCallRate, text)
		}
		*into = text
		return nil
	}
}

// codes reads error codes, each once.
func codes(into *[]string) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		return v.List(func(v strictyaml.Value) error {
			var code string
			if err := strictyaml.Text(&code)(v); err != nil {
				return err
			}
			switch {
			case len(*into) == maxCodes:
				return v.Fail("more than %d codes", maxCodes)
			case slices.Contains(*into, code):
				return v.Fail("%q stands twice", code)
			case len(code) > wire.MaxNameLength || !isCode(code):
				return v.Fail("%.40q is no error code; use 1 to %d of A-Z a-z 0-9 _ - .", code, wire.MaxNameLength)
			}
			*into = append(*into, code)
			return nil
		})
	}
}

// isCode reports whether a text has only what names have, and dots.
func isCode(code string) bool {
	return wire.ValidateName(string(bytes.ReplaceAll([]byte(code), []byte("."), []byte("_")))) == nil
}

func params(into *map[string]string) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		*into = map[string]string{}
		err := v.Entries("names and values", func(name string, v strictyaml.Value) error {
			text, ok := v.Plain()
			if !ok {
				return v.Wrong("a value: text, a number, true or false")
			}
			(*into)[name] = text
			return nil
		})
		if err != nil {
			return err
		}
		if size, err := json.Marshal(*into); err != nil || len(size) > maxParamsBytes || len(*into) > maxParams {
			return v.Fail("%d parameters of %d bytes; at most %d, of %d KiB, are allowed", len(*into), len(size), maxParams,
				maxParamsBytes>>10)
		}
		return nil
	}
}

// check looks at names, and at what fields are to each other.
func check(doc *strictyaml.Document, s *collector.CollectorSpec, keying *order.Rule) error {
	if s.Endpoint == "" {
		return doc.Fail("endpoint", "it is missing; a collector needs the endpoint that its flushes ask")
	}
	if err := wire.ValidateName(s.Endpoint); err != nil {
		return doc.Fail("endpoint", "%v", err)
	}
	if s.Name == "" {
		return doc.Fail("name", "it is missing; give the collector a name, of A-Z a-z 0-9 _ -")
	}
	if wire.ValidateName(s.Name) != nil {
		return doc.Fail("name", "%.80q is no name of a collector; use 1 to %d of A-Z a-z 0-9 _ -", s.Name,
			wire.MaxNameLength)
	}
	if err := checkKeying(doc, keying); err != nil {
		return err
	}
	if err := checkFold(doc, s); err != nil {
		return err
	}
	if err := checkEnrichment(doc, s); err != nil {
		return err
	}
	return checkPairs(doc, s)
}

// checkFold has what folds be strict, in the order in which operations were added: else an update that failed would go
// after one that came later.
func checkFold(doc *strictyaml.Document, s *collector.CollectorSpec) error {
	switch {
	case s.Fold == "" && s.FoldBy != "":
		return doc.Fail("fold_by", "there is no fold that it could be of; give fold: %s or fold: %s, or leave it out",
			collector.FoldLast, collector.FoldMerge)
	case s.Fold == "":
		return nil
	case s.Order == collector.OrderPriority:
		return doc.Fail("fold", "it does not go with order: %s, by which older data could go after newer", s.Order)
	case doc.Given("strict") && !s.Strict:
		return doc.Fail("strict", "with fold it is always true: else an operation that failed would go after one that came "+
			"later; leave it out")
	}
	s.Strict = true
	if s.FoldBy == "" {
		return nil
	}
	rule := order.Rule{By: s.FoldBy}
	if wrong, ok := errors.AsType[*order.SettingError](rule.Validate()); ok {
		return doc.Fail("fold_by", "%s", wrong.Problem)
	}
	return nil
}

func checkKeying(doc *strictyaml.Document, keying *order.Rule) error {
	if !keying.Set() {
		return nil
	}
	wrong, ok := errors.AsType[*order.SettingError](keying.Validate())
	switch {
	case !ok:
		return nil
	case wrong.Field == "order_by" && keying.By == "" && len(keying.Values) > 0:
		return doc.Fail("values", "there is no order_by whose values these could be; name the field in order_by, or leave "+
			"them out")
	case wrong.Field == "order_by" && keying.By == "":
		return doc.Fail("partitions", "there is no order_by whose values could be spread; name the field in order_by, or "+
			"order_by: %s for the keys that operations bring", order.Key)
	}
	return doc.Fail(wrong.Field, "%s", wrong.Problem)
}

// checkPairs compares fields that were given, and those that were not by their defaults.
func checkPairs(doc *strictyaml.Document, given *collector.CollectorSpec) error {
	s := given.WithDefaults()
	of := func(field string, value any) string {
		if doc.Given(field) {
			return fmt.Sprintf("%s, which is %v", field, value)
		}
		return fmt.Sprintf("%s, which is %v when it is not given", field, value)
	}
	switch {
	case s.MinSize > s.MaxSize:
		return doc.Fail("min_size", "%d is more than %s: a flush would never be due", s.MinSize, of("max_size", s.MaxSize))
	case s.Backoff > s.MaxBackoff:
		return doc.Fail("max_backoff", "%s is less than %s", s.MaxBackoff, of("backoff", s.Backoff))
	case given.MaxBackoff != 0 && s.MaxAttempts == 1:
		return doc.Fail("max_backoff", "with max_attempts: 1 nothing is tried again; leave it out")
	}
	for _, code := range s.NeverRetry {
		if slices.Contains(s.RetryCodes, code) {
			return doc.Fail("never_retry", "%q stands in retry_codes, too", code)
		}
	}
	return nil
}

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

// RowPart is what a template calls the row of a query, as in {parts.sql.name}.
const RowPart = "sql"

// enrichment reads what is stored of an operation. The settings of the query are kept as those of a step.
func enrichment(into **collector.Enrichment) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		e := &collector.Enrichment{}
		*into = e
		var query *gather.SQL
		err := v.Fields([]strictyaml.Field{
			{Name: "sql", Read: gather.ReadSQL(&query)},
			{Name: "by", Read: strictyaml.Text(&e.By)},
			{Name: "optional", Read: strictyaml.Truth(&e.Optional)},
			{Name: "payload", Read: strictyaml.JSON(&e.Payload)},
		}...)
		if err == nil && query != nil {
			e.SQL, err = json.Marshal(query)
		}
		return err
	}
}

// Query returns the query of an enrichment; nil when it has none.
func Query(e *collector.Enrichment) (*gather.SQL, error) {
	if e == nil || e.SQL == nil {
		return nil, nil
	}
	q := &gather.SQL{}
	if err := json.Unmarshal(e.SQL, q); err != nil {
		return nil, fmt.Errorf("read the query of an enrichment: %w", err)
	}
	return q, nil
}

// Template returns what is filled in.
func Template(e *collector.Enrichment) (*template.Body, error) {
	of := template.Variables{Item: true, Alone: true}
	if e.SQL != nil {
		of.Parts = []string{RowPart}
	}
	return template.ParseBody(e.Payload, of)
}

func checkEnrichment(doc *strictyaml.Document, s *collector.CollectorSpec) error {
	e := s.Enrich
	if e == nil {
		return nil
	}
	query, err := Query(e)
	switch {
	case err != nil:
		return err
	case e.Payload == nil:
		return doc.Fail("enrich", "payload is missing: what is to be stored, as in {change: \"{item}\"}")
	case query == nil && e.By != "":
		return doc.Fail("enrich.by", "there is no sql that asks for it; leave it out")
	case query == nil && e.Optional:
		return doc.Fail("enrich.optional", "there is no sql that could have no row; leave it out")
	}
	if query != nil {
		if wrong, ok := errors.AsType[*gather.FieldError](query.ValidateAlone("enrich.sql.")); ok {
			return doc.Fail(wrong.Field, "%s", wrong.Problem)
		}
	}
	if e.By != "" {
		rule := order.Rule{By: e.By}
		if wrong, ok := errors.AsType[*order.SettingError](rule.Validate()); ok {
			return doc.Fail("enrich.by", "%s", wrong.Problem)
		}
	}
	if _, err := Template(e); err != nil {
		return doc.Fail("enrich.payload", "%v", err)
	}
	return nil
}

// Asked returns what the query of an enrichment is asked for on behalf of an operation: the value of by, or else that
// of order_by, or the operation's own key. The error is an *order.ValueError.
func Asked(spec *collector.CollectorSpec, own string, payload []byte) (string, error) {
	return valueOf(spec, spec.Enrich.By, own, payload)
}
