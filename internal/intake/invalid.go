package intake

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/tranchehq/tranche/gather/itemschema"
	"github.com/tranchehq/tranche/internal/intake/row"
)

// MaxPlaces is how many places an InvalidError has at the most.
const MaxPlaces = 20

// maxInvalid bounds what is said of one item.
const maxInvalid = 1000

// InvalidError is returned for items that do not fit the schema that they must.
type InvalidError struct {
	Source string         // what the input is called; may be empty
	Places []InvalidPlace // the first ones, in the order of the input
	More   bool           // nobody looked further
	Mended bool           // they were to correct others
}

// InvalidPlace is one thing that is wrong with one item.
type InvalidPlace struct {
	Unit    string // what Line counts: line, row or message
	Line    int
	Key     string
	Field   string // empty: the item as a whole
	Problem string
}

// Where says where the item stands, and what its key is.
func (p *InvalidPlace) Where() string {
	return fmt.Sprintf("%s %d, key %s", p.Unit, p.Line, row.Quote(p.Key))
}

// What says what is wrong with it.
func (p *InvalidPlace) What() string {
	if p.Field == "" {
		return p.Problem
	}
	return fmt.Sprintf("field %s: %s", row.Quote(p.Field), p.Problem)
}

func (e *InvalidError) Error() string {
	var b strings.Builder
	if e.Source != "" {
		b.WriteString(e.Source + ": ")
	}
	items := map[int]bool{}
	for i := range e.Places {
		items[e.Places[i].Line] = true
	}
	switch {
	case e.More:
		fmt.Fprintf(&b, "items do not fit the schema; the first %d places are:", len(e.Places))
	case len(items) == 1:
		b.WriteString("one item does not fit the schema:")
	default:
		fmt.Fprintf(&b, "%d items do not fit the schema:", len(items))
	}
	for i := range e.Places {
		fmt.Fprintf(&b, "\n%s, %s", e.Places[i].Where(), e.Places[i].What())
	}
	if e.Mended {
		b.WriteString("\nNothing was corrected. Mend the items")
		return b.String()
	}
	b.WriteString("\nNothing was started. Mend the items or the schema, or have such items fail alone: invalid=fail")
	return b.String()
}

// schemaCheck holds rows against a schema.
type schemaCheck struct {
	schema  *itemschema.Schema
	lenient bool
	source  string
}

// take checks a row. Where what does not fit is refused, the first such row has the others read, too: all that is to be
// mended is told at once.
func (c *schemaCheck) take(r *Reader, item *row.Item) error {
	item.Invalid = ""
	faults := c.schema.Check(item.Payload)
	if faults == nil {
		return nil
	}
	if c.lenient {
		item.Invalid = describe(faults)
		return nil
	}
	bad := &InvalidError{Source: c.source}
	for {
		for _, f := range faults {
			if len(bad.Places) == MaxPlaces {
				bad.More = true
				return bad
			}
			bad.Places = append(bad.Places, InvalidPlace{cmp.Or(r.unit, "line"), item.Line, item.Key, f.Field, f.Problem})
		}
		err := r.row(item)
		if errors.Is(err, io.EOF) {
			return bad
		}
		if err != nil {
			return err
		}
		faults = c.schema.Check(item.Payload)
	}
}

// describe says in one text what is wrong with an item.
func describe(faults []itemschema.Fault) string {
	var b strings.Builder
	for i, f := range faults {
		said := f.String()
		if b.Len()+len(said) > maxInvalid {
			fmt.Fprintf(&b, "; and %d more", len(faults)-i)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(said)
	}
	return b.String()
}
