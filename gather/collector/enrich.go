package collector

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/gather/template"
	"github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/order"
)

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
