package ingest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/gather/template"
	"github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/order"
)

const (
	// MaxDefinition bounds the YAML of a collector.
	MaxDefinition = 64 << 10

	maxParamsBytes = 16 << 10
)

// Parse parses a collector. Errors use name for the input; it is also the collector's name unless it has one.
//
//	name: notify             # 1 to 64 of A-Z a-z 0-9 _ -
//	endpoint: notify         # required: receives the operations as a list
//	params: {channel: mail}  # sent with each request
//	min_size: 100            # flush a key when this many operations wait,
//	max_age: 10s             # or when the oldest has waited this long
//	max_size: 500            # most operations per flush
//	in_flight: 16            # parallel flushes
//	rate: 50/m               # calls, over all nodes
//	max_attempts: 5          # then an operation is parked
//	backoff: 1s              # before the second attempt; doubled each time
//	max_backoff: 5m
//	timeout: 1m              # of a flush
//	dedupe: 24h              # how long IDs are remembered
//	order: fifo              # or priority
//	strict: false            # true: a failed operation blocks its key
//	order_by: customer.id    # payload field with the key
//	partitions: 64           # hash its values into N keys; or values: [eu, us]
//	fold: last               # send one operation per key: the last, or payloads merged (merge)
//	fold_by: customer.id     # fold by this field instead of the key
//	enrich:                  # what to store instead of the payload
//	  sql: {source: crm, query: "SELECT id, name FROM customer WHERE id = ANY($1)"} # or endpoint: NAME, or local: NAME
//	  payload: {change: "{item}", name: "{parts.sql.name}"}
//	retry_codes: [BUSY]      # retried even if the service says no
//	no_retry_codes: [GONE]      # not retried even if the service says yes
//
// Only the endpoint is required. Errors are *strictyaml.Error.
func Parse(name string, text []byte) (*collector.CollectorSpec, error) {
	doc, err := strictyaml.Open("collector", name, text, MaxDefinition)
	if err != nil {
		return nil, err
	}
	d := document{CollectorSpec: collector.CollectorSpec{Name: name, Dedupe: collector.DefaultDedupe}}
	if err := doc.Root.Decode(&d); err != nil {
		return nil, err
	}
	spec := &d.CollectorSpec
	spec.Rate = d.Rate
	keying := order.Rule{By: d.OrderBy, Values: d.Values, Partitions: d.Partitions}
	if keying.Set() {
		spec.OrderBy = &collector.OpKeying{Field: keying.By, Values: keying.Values, Partitions: keying.Partitions}
	}
	if e := d.Enrich; e != nil {
		spec.Enrich = &e.Enrichment
		if part := partOf(spec.Enrich); part != "" && part != partSQL && e.Payload == nil {
			spec.Enrich.Payload = fmt.Appendf(nil, `"{parts.%s}"`, part)
		}
		if e.SQL != nil {
			if spec.Enrich.SQL, err = json.Marshal(e.SQL); err != nil {
				return nil, err
			}
		}
	}
	if err := check(doc, spec, &keying); err != nil {
		return nil, err
	}
	whole := spec.WithDefaults()
	return &whole, nil
}

// Schema returns the JSON Schema of a collector's YAML.
func Schema() map[string]any {
	return strictyaml.Schema(func(doc *strictyaml.Document) error { return doc.Root.Decode(&document{}) })
}

type document struct {
	collector.CollectorSpec

	Rate       string      `json:"rate" want:"calls in a time, like 10/s, 50/m, 100/h or 500/d"`
	OrderBy    string      `json:"order_by"`
	Values     []string    `json:"values" min:"1"`
	Partitions int         `json:"partitions" min:"1" max:"65536"`
	Enrich     *enrichment `json:"enrich"`
}

// enrichment is what to store of an operation. The query's settings are those of a step.
type enrichment struct {
	SQL *gather.SQL `json:"sql"`
	collector.Enrichment
}

func checkCodes(doc *strictyaml.Document, field string, codes []string) error {
	for i, code := range codes {
		switch at := fmt.Sprintf("%s[%d]", field, i); {
		case slices.Contains(codes[:i], code):
			return doc.Fail(at, "%q appears twice", code)
		case len(code) > wire.MaxNameLength || !isCode(code):
			return doc.Fail(at, "%.40q is not an error code; use 1 to %d of A-Z a-z 0-9 _ - .", code, wire.MaxNameLength)
		}
	}
	return nil
}

func isCode(code string) bool {
	return wire.ValidateName(string(bytes.ReplaceAll([]byte(code), []byte("."), []byte("_")))) == nil
}

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
		return doc.Fail("name", "invalid collector name %.80q; use 1 to %d of A-Z a-z 0-9 _ -", s.Name,
			wire.MaxNameLength)
	}
	if size, err := json.Marshal(s.Params); err != nil || len(size) > maxParamsBytes {
		return doc.Fail("params", "they have %d bytes; at most %d KiB are allowed", len(size), maxParamsBytes>>10)
	}
	if _, err := collector.ParseRequestRate(s.Rate); err != nil {
		return doc.Fail("rate", "%v", err)
	}
	return cmp.Or(checkCodes(doc, "retry_codes", s.RetryCodes), checkCodes(doc, "no_retry_codes", s.NoRetryCodes),
		checkKeying(doc, keying), checkFold(doc, s), checkEnrichment(doc, s), checkPairs(doc, s))
}

// checkFold requires strict insertion order for folds: a failed update would otherwise follow a later one.
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

// checkPairs compares related fields, with defaults for those not given.
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
		return doc.Fail("max_backoff", "with max_attempts: 1 nothing is retried; leave it out")
	}
	for _, code := range s.NoRetryCodes {
		if slices.Contains(s.RetryCodes, code) {
			return doc.Fail("no_retry_codes", "%q is in retry_codes, too", code)
		}
	}
	return nil
}

// Key returns an operation's key: its own, or the payload's value for order_by. With partitions it is a stable number
// such as 17/64, counted from 0. The error is an *OpError if the payload has no value, one that is not listed, or one
// that cannot be a key.
func Key(spec *collector.CollectorSpec, own string, payload []byte) (string, error) {
	rule := order.Rule{By: order.Key}
	if by := spec.OrderBy; by != nil {
		rule = order.Rule{By: by.Field, Values: by.Values, Partitions: by.Partitions}
	}
	value, err := valueOf(&rule, "order_by", own, payload)
	switch {
	case err != nil:
		return "", err
	case rule.Partitions > 0:
		return strconv.Itoa(order.Partition(value, rule.Partitions)) + "/" + strconv.Itoa(rule.Partitions), nil
	case len(value) > collector.MaxOpKey:
		return "", wrongValue(&rule, "order_by", "the value has %d bytes, and a key has at most %d; with partitions it may "+
			"be longer", len(value), collector.MaxOpKey)
	}
	return value, nil
}

// ownKey reports whether operations must have a key.
func ownKey(spec *collector.CollectorSpec) bool { return usual(spec, "").By == order.Key }

// Fold returns the value by which an operation is folded with others of its key: that of fold_by, else of order_by,
// else the operation's own key. It is empty without fold. The error is an *OpError.
func Fold(spec *collector.CollectorSpec, own string, payload []byte) (string, error) {
	if spec.Fold == "" {
		return "", nil
	}
	rule := usual(spec, spec.FoldBy)
	value, err := valueOf(&rule, "fold by", own, payload)
	if err == nil && (value == "" || len(value) > collector.MaxOpKey) {
		return "", wrongValue(&rule, "fold by", "the value has %d bytes; what operations are folded by has 1 to %d",
			len(value), collector.MaxOpKey)
	}
	return value, err
}

// usual returns the rule for the value of by, else of order_by, else the operation's own key.
func usual(spec *collector.CollectorSpec, by string) order.Rule {
	if by == "" && spec.OrderBy != nil {
		by = spec.OrderBy.Field
	}
	return order.Rule{By: cmp.Or(by, order.Key)}
}

// valueOf returns an operation's value for a rule: text that PostgreSQL can store. The error is an *OpError, which says
// what the value is for.
func valueOf(rule *order.Rule, use, own string, payload []byte) (string, error) {
	value, err := rule.Value(own, payload)
	if bad, ok := errors.AsType[*order.ValueError](err); ok {
		return "", wrongValue(rule, use, "%s", bad.Problem)
	}
	if err == nil && !isText(value) {
		return "", wrongValue(rule, use, "the value %.60q must be UTF-8 without NUL", value)
	}
	return value, err
}

func wrongValue(rule *order.Rule, use, format string, args ...any) error {
	field := "payload"
	if rule.By == order.Key {
		field = "key"
	}
	return &OpError{Field: field, Problem: use + " " + rule.By + ": " + fmt.Sprintf(format, args...)}
}

const partSQL, partEndpoint, partLocal = "sql", "endpoint", "local"

// partOf returns the name of an enrichment's result in templates, as in {parts.sql.name}; empty: nothing.
func partOf(e *collector.Enrichment) string {
	switch {
	case e.Endpoint != "":
		return partEndpoint
	case e.Local != "":
		return partLocal
	case e.SQL != nil:
		return partSQL
	}
	return ""
}

// Query returns the query of an enrichment, or nil without one.
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

func bodyOf(e *collector.Enrichment) (*template.Body, error) {
	of := template.Variables{Item: true, Alone: true}
	if part := partOf(e); part != "" {
		of.Parts = []string{part}
	}
	return template.ParseBody(e.Payload, of)
}

// checkAsked checks what an enrichment asks, except a query.
func checkAsked(doc *strictyaml.Document, e *collector.Enrichment) error {
	switch {
	case e.Endpoint != "" && (e.SQL != nil || e.Local != ""), e.SQL != nil && e.Local != "":
		return doc.Fail("enrich", "give only one of sql, endpoint and local")
	case wire.ValidateName(cmp.Or(e.Endpoint, e.Local, partLocal)) != nil:
		return doc.Fail("enrich."+partOf(e), "invalid name %.80q; use 1 to %d of A-Z a-z 0-9 _ -", e.Endpoint+e.Local,
			wire.MaxNameLength)
	}
	return nil
}

func checkEnrichment(doc *strictyaml.Document, s *collector.CollectorSpec) error {
	e := s.Enrich
	if e == nil {
		return nil
	}
	query, err := Query(e)
	if err := cmp.Or(err, checkAsked(doc, e)); err != nil {
		return err
	}
	switch {
	case e.Payload == nil:
		return doc.Fail("enrich", "payload is missing; say what to store, for example {change: \"{item}\"}")
	case partOf(e) == "" && e.By != "":
		return doc.Fail("enrich.by", "by needs sql, endpoint or local")
	case query == nil && e.Optional:
		return doc.Fail("enrich.optional", "optional needs sql")
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
	if _, err := bodyOf(e); err != nil {
		return doc.Fail("enrich.payload", "%v", err)
	}
	return nil
}
