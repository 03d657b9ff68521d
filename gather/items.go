package gather

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tranchehq/tranche/gather/itemschema"
	"github.com/tranchehq/tranche/gather/strictyaml"
)

// What becomes of items that do not fit the schema.
const (
	InvalidFail   = "fail"   // they have failed, with code invalid, and nobody is asked about them
	InvalidRefuse = "refuse" // nothing is started: the default, which plans keep as ""
)

// Items is what the items of a plan's runs must look like.
type Items struct {
	Schema  json.RawMessage `json:"schema,omitempty"`  // a JSON Schema; nil: anything
	Invalid string          `json:"invalid,omitempty"` // InvalidFail, or ""
}

// given reports whether anything is said.
func (i *Items) given() bool { return len(i.Schema) > 0 || i.Invalid != "" }

func (i *Items) clone() Items {
	out := *i
	out.Schema = bytes.Clone(i.Schema)
	return out
}

var errInvalid = fmt.Errorf("want %s or %s", InvalidRefuse, InvalidFail)

// parseInvalid reads what becomes of invalid items, and returns the form in which plans keep it.
func parseInvalid(text string) (string, error) {
	switch text {
	case "", InvalidRefuse:
		return "", nil
	case InvalidFail:
		return text, nil
	}
	return "", errInvalid
}

func readItems(into *Items) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		return v.Fields(
			strictyaml.Field{Name: "schema", Read: strictyaml.JSON(&into.Schema)},
			strictyaml.Field{Name: "invalid", Read: canonical(&into.Invalid, parseInvalid)},
		)
	}
}

// canonical reads a word of which there are several forms. What is none stays as it is, for Validate to refuse.
func canonical(into *string, parse func(string) (string, error)) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		err := text(into)(v)
		if said, wrong := parse(*into); err == nil && wrong == nil {
			*into = said
		}
		return err
	}
}

// checkItems looks at each setting of the items by itself, and at what goes together. Errors name the settings with a
// prefix.
func (i *Items) check(prefix string) error {
	if i.Invalid != "" && i.Invalid != InvalidFail {
		return fieldError(prefix+"invalid", "%v; this is %.40q", errInvalid, i.Invalid)
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

// checkItems looks at the plan's items, and at what does not go with them.
func (p *Plan) checkItems() error {
	if err := p.Items.check("items."); err != nil {
		return err
	}
	switch {
	case p.Items.Invalid == "":
	case len(p.Items.Schema) == 0:
		return fieldError("items.invalid", "there is no schema that items could not fit; set items.schema, or leave this out")
	case p.Order.Set():
		return fieldError("items.invalid", "it does not go with order_by: an item that is not worked on would be passed by "+
			"those behind it; have such items refused, or leave order_by out")
	}
	for i := range p.Steps {
		if p.Items.Invalid != "" && p.Steps[i].Optional {
			return fieldError("items.invalid", "it does not go with optional steps, like %s: what needs them would be asked "+
				"about items that do not fit; have such items refused, or leave optional out", p.Steps[i].Name)
		}
	}
	return nil
}

// layItems lays what one run says of its items over what the plan says.
func (o *Overrides) layItems(plan *Plan) {
	if len(o.Schema) > 0 {
		plan.Items.Schema = o.Schema
	}
	if o.Invalid != nil {
		plan.Items.Invalid = *o.Invalid
		if said, err := parseInvalid(*o.Invalid); err == nil {
			plan.Items.Invalid = said
		}
	}
}

// itemSettings are those of an Overrides.
func (o *Overrides) itemSettings() []setting {
	return []setting{
		{"schema", o.readSchema},
		{"invalid", reading(&o.Invalid, parseInvalidWord)},
	}
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

// parseInvalidWord keeps a default that was said: it is laid over a plan that says otherwise.
func parseInvalidWord(text string) (string, error) {
	_, err := parseInvalid(text)
	return text, err
}
