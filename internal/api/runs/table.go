package runs

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/parquet-go/parquet-go"

	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/export"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

type exportShape struct {
	in      formats
	payload bool     // include payloads
	parts   []string // steps whose parts to include in place of the result; none: the result
	flat    bool     // one column per field of payloads and results
	columns []string // only these, in this order; none: all
}

// ours prefixes our column names in a flat table, because payloads may have fields of any name.
const ours = intake.ExportPrefix

const maxFields = 2000

type exportCell struct {
	raw   json.RawMessage // nil: text is the value
	text  string
	bytes []byte // of a value that is not text: in base64, unless the format has bytes
	here  bool
	write func(*objectExport) error // writes the value; nil: the rest are it
}

type exportRow struct {
	item            *export.Item
	payload, result map[string]json.RawMessage // nil: without fields
	parts           []*exportRow
}

type formats uint8

const (
	inLines   formats = 1 << iota // NDJSON
	inParquet                     // not flat
	inTables                      // CSV, XLSX, and chosen columns in any format
	inFlat                        // tables with a column for each field

	inFiles = inLines | inParquet
	inAll   = inFiles | inTables | inFlat
)

type exportColumn struct {
	name string
	in   formats
	of   belonging
	cell func(*exportRow) exportCell
	node parquet.Node // its Parquet type; nil: optional text
}

type belonging uint8

const (
	ofItem belonging = iota
	ofPart           // of each part, if there are parts, and of the item otherwise
	ofBoth
)

// itemColumns are the columns about items. To add one, add a row.
//
//nolint:gochecknoglobals // a table
var itemColumns = []exportColumn{
	{name: "ordinal", in: inFiles, node: parquet.Int(32), cell: func(r *exportRow) exportCell {
		text := strconv.Itoa(int(r.item.Ordinal))
		return exportCell{raw: json.RawMessage(text), text: text, here: true}
	}},
	{name: "key", in: inAll, node: parquet.String(), cell: func(r *exportRow) exportCell {
		return exportCell{text: r.item.Key, here: true}
	}},
	{name: "state", in: inAll, of: ofBoth, node: parquet.Encoded(parquet.String(), &parquet.RLEDictionary),
		cell: func(r *exportRow) exportCell { return textCell(string(r.item.State)) }},
	{name: "step", in: inFiles, node: few, cell: func(r *exportRow) exportCell { return textCell(r.item.Step) }},
	{name: "result", in: inTables, of: ofPart, cell: func(r *exportRow) exportCell { return resultCell(r.item) }},
	{name: "result", in: inFiles, of: ofPart, cell: func(r *exportRow) exportCell {
		return exportCell{raw: r.item.Result, text: string(r.item.Result), here: jsonResult(r.item)}
	}},
	{name: "result_bytes", in: inFiles, of: ofPart, node: parquet.Optional(parquet.Leaf(parquet.ByteArrayType)),
		cell: func(r *exportRow) exportCell {
			// A streamed result comes at the end of the line.
			return exportCell{bytes: r.item.Result, here: r.item.Large == nil && len(r.item.Result) > 0 && !jsonResult(r.item)}
		}},
	{name: "content_type", in: inFiles, of: ofPart, node: few, cell: func(r *exportRow) exportCell {
		if r.item.Large != nil {
			return textCell(r.item.Large.ContentType)
		}
		return textCell(r.item.ContentType)
	}},
	{name: "error", in: inLines, of: ofBoth, cell: func(r *exportRow) exportCell {
		if r.item.State != workqueue.OutcomeFailed {
			return exportCell{}
		}
		raw, _ := json.Marshal(inspect.ItemError{Code: r.item.ErrorCode, Message: r.item.ErrorMessage}) // two texts
		return exportCell{raw: raw, here: true}
	}},
	{name: "error_code", in: inAll &^ inLines, of: ofBoth, node: few,
		cell: func(r *exportRow) exportCell { return textCell(r.item.ErrorCode) }},
	{name: "error_message", in: inAll &^ inLines, of: ofBoth,
		cell: func(r *exportRow) exportCell { return textCell(r.item.ErrorMessage) }},
	{name: "accepted", in: inAll, node: parquet.Leaf(parquet.BooleanType), cell: func(r *exportRow) exportCell {
		if !r.item.Accepted {
			return exportCell{}
		}
		return exportCell{raw: json.RawMessage("true"), text: "true", here: true}
	}},
	{name: payloadColumn, in: inAll &^ inFlat, cell: func(r *exportRow) exportCell {
		return jsonCell(r.item.Payload, len(r.item.Payload) > 0)
	}},
}

const payloadColumn = "payload"

// few is the type of an optional text with few different values.
//
//nolint:gochecknoglobals // a constant
var few = parquet.Encoded(parquet.Optional(parquet.String()), &parquet.RLEDictionary)

// columnsIn returns the columns of a format: with parts also those of each, in NDJSON one with an object.
func columnsIn(in formats, payload bool, parts ...string) (all []exportColumn) {
	of := func(wanted func(c *exportColumn) bool) (some []exportColumn) {
		for _, c := range itemColumns {
			if c.in&in != 0 && wanted(&c) {
				if in&inParquet == 0 {
					c.node = nil
				}
				some = append(some, c)
			}
		}
		return some
	}
	all = of(func(c *exportColumn) bool {
		return (payload || c.name != payloadColumn) && (len(parts) == 0 || c.of != ofPart)
	})
	if len(parts) == 0 {
		return all
	}
	each := of(func(c *exportColumn) bool { return c.of != ofItem })
	if in&inLines != 0 {
		return append(all, exportColumn{name: partsColumn, cell: func(r *exportRow) exportCell {
			return partsCell(r, each, parts)
		}})
	}
	for i, step := range parts {
		for _, c := range each {
			cell := c.cell
			c.name, c.cell = partsColumn+"."+step+"."+c.name, func(r *exportRow) exportCell { return cell(r.parts[i]) }
			if c.node != nil && !c.node.Optional() {
				c.node = few // a step may have no part
			}
			all = append(all, c)
		}
	}
	return all
}

const partsColumn = "parts"

// partsCell writes parts one at a time, since each may be large.
func partsCell(r *exportRow, columns []exportColumn, steps []string) exportCell {
	here := func(part *exportRow) bool { return part.item.State != "" }
	return exportCell{here: slices.ContainsFunc(r.parts, here), write: func(e *objectExport) error {
		each := newObjectExport(e.out, nil, e.open)
		before := '{'
		for i, part := range r.parts {
			if !here(part) {
				continue
			}
			name, _ := json.Marshal(steps[i])                // a text
			_, _ = fmt.Fprintf(e.out, "%c%s:", before, name) // the writer keeps the error
			before = ','
			if err := each.object(columns, part); err != nil {
				return err
			}
		}
		return e.out.WriteByte('}')
	}}
}

func textCell(text string) exportCell { return exportCell{text: text, here: text != ""} }

func fieldCell(fields map[string]json.RawMessage, name string) exportCell {
	raw, here := fields[name]
	return jsonCell(raw, here)
}

// jsonCell returns a JSON value: a string as its text, anything else as raw JSON.
func jsonCell(raw json.RawMessage, here bool) exportCell {
	if !here || string(raw) == "null" {
		return exportCell{}
	}
	c := exportCell{raw: raw, here: true}
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &c.text) != nil {
		var compact bytes.Buffer
		c.text = string(raw)
		if json.Compact(&compact, raw) == nil {
			c.text = compact.String()
		}
	}
	return c
}

func (c *exportCell) isNumber() bool {
	return len(c.raw) > 0 && (c.raw[0] == '-' || c.raw[0] >= '0' && c.raw[0] <= '9')
}

func jsonResult(item *export.Item) bool {
	return item.State == workqueue.OutcomeDone && item.Large == nil && item.ContentType == "" && json.Valid(item.Result)
}

func resultCell(item *export.Item) exportCell {
	switch {
	case item.State != workqueue.OutcomeDone:
		return exportCell{}
	case jsonResult(item):
		var compact bytes.Buffer
		_ = json.Compact(&compact, item.Result) // it is valid
		return exportCell{raw: item.Result, text: compact.String(), here: true}
	}
	return textCell(resultText(item))
}

type partFields struct {
	step   string
	fields []string
}

func flatColumns(payload, result []string, parts ...partFields) []exportColumn {
	own := columnsIn(inFlat, false)
	all := own[:1:1] // the key
	all[0].name = ours + all[0].name
	taken := map[string]bool{all[0].name: true}
	add := func(name string, cell func(*exportRow) exportCell) {
		for taken[name] {
			name += "_"
		}
		taken[name] = true
		all = append(all, exportColumn{name: name, cell: cell})
	}
	for _, name := range payload {
		add(intake.ExportColumn(name), func(r *exportRow) exportCell { return fieldCell(r.payload, name) })
	}
	for _, c := range own[1:] {
		add(ours+c.name, c.cell)
	}
	results := func(prefix, of string, fields []string, at func(*exportRow) *exportRow) {
		for _, name := range fields {
			add(prefix+name, func(r *exportRow) exportCell { return fieldCell(at(r).result, name) })
		}
		add(ours+of+"result", func(r *exportRow) exportCell { // for results without fields
			if r = at(r); r.result != nil {
				return exportCell{}
			}
			return resultCell(r.item)
		})
	}
	if len(parts) == 0 {
		results(intake.ExportResult, "", result, func(r *exportRow) *exportRow { return r })
	}
	for i, part := range parts {
		prefix, at := partsColumn+"."+part.step+".", func(r *exportRow) *exportRow { return r.parts[i] }
		results(intake.ExportResult+part.step+".", prefix, part.fields, at)
		for _, c := range own {
			if c.of == ofBoth {
				add(ours+prefix+c.name, func(r *exportRow) exportCell { return c.cell(at(r)) })
			}
		}
	}
	return all
}

type fieldNames struct {
	names []string
	known map[string]bool
}

func (f *fieldNames) meet(fields map[string]json.RawMessage, doc []byte) error {
	var news []string
	for name := range fields {
		if !f.known[name] {
			news = append(news, name)
		}
	}
	if len(news) == 0 {
		return nil
	}
	at := func(name string) int { // in their order in the document
		quoted, _ := json.Marshal(name) // a string
		return bytes.Index(doc, quoted)
	}
	slices.SortFunc(news, func(a, b string) int {
		if d := at(a) - at(b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	for _, name := range news {
		f.known[name] = true
	}
	f.names = append(f.names, news...)
	if len(f.names) > maxFields {
		return apicore.BadInput(fmt.Sprintf("the items have more than %d fields, too many for columns; export them "+
			"without flat",
			maxFields))
	}
	return nil
}

func objectOf(doc []byte) (fields map[string]json.RawMessage) {
	if json.Unmarshal(doc, &fields) != nil {
		return nil
	}
	return fields
}

func rowOf(item *export.Item, flat bool) *exportRow {
	r := &exportRow{item: item}
	for i := range item.Parts {
		r.parts = append(r.parts, rowOf(&item.Parts[i], flat))
	}
	if !flat {
		return r
	}
	if r.payload = objectOf(item.Payload); r.payload == nil && len(item.Payload) > 0 {
		r.payload = map[string]json.RawMessage{"payload": item.Payload}
	}
	if item.State == workqueue.OutcomeDone && item.ContentType == "" {
		r.result = objectOf(item.Result)
	}
	return r
}

type exportTable struct {
	columns         []exportColumn
	flat            bool
	payload, result map[string]bool // fields with columns, in a flat table
	parts           []map[string]bool
}

// tableOf chooses the columns. For a flat table it first reads all items once.
func tableOf(each eachItem, shape exportShape) (*exportTable, error) {
	t := &exportTable{flat: shape.flat}
	if shape.flat {
		payload, result := fieldNames{known: map[string]bool{}}, fieldNames{known: map[string]bool{}}
		parts := make([]fieldNames, len(shape.parts))
		for i := range parts {
			parts[i].known = map[string]bool{}
		}
		err := each(func(item *export.Item) error {
			row := rowOf(item, true)
			if err := payload.meet(row.payload, item.Payload); err != nil {
				return err
			}
			for i, part := range row.parts {
				if err := parts[i].meet(part.result, part.item.Result); err != nil {
					return err
				}
			}
			return result.meet(row.result, item.Result)
		})
		if err != nil {
			return nil, err
		}
		var fields []partFields
		for i, step := range shape.parts {
			fields, t.parts = append(fields, partFields{step, parts[i].names}), append(t.parts, parts[i].known)
		}
		t.columns = flatColumns(payload.names, result.names, fields...)
		t.payload, t.result = payload.known, result.known
	} else {
		t.columns = columnsIn(shape.in, shape.payload, shape.parts...)
	}
	return t, t.choose(shape.columns)
}

func (t *exportTable) choose(wanted []string) error {
	if len(wanted) == 0 {
		return nil
	}
	names := t.names()
	chosen := make([]exportColumn, len(wanted))
	for i, name := range wanted {
		at := slices.Index(names, name)
		if at < 0 {
			return apicore.BadInput(fmt.Sprintf("columns: there is no column %q; there are %s", apicore.Echo(name),
				apicore.Cut(strings.Join(names, ", "), 20*apicore.MaxEchoed)))
		}
		if slices.Contains(wanted[:i], name) { // Parquet files and objects have each name once
			return apicore.BadInput(fmt.Sprintf("columns: %s appears twice; name each once", strconv.Quote(apicore.Echo(name))))
		}
		chosen[i] = t.columns[at]
	}
	t.columns, t.payload, t.result, t.parts = chosen, nil, nil, nil
	return nil
}

func (t *exportTable) names() (names []string) {
	for _, c := range t.columns {
		names = append(names, c.name)
	}
	return names
}

// row converts an item. A field that appeared after the columns were chosen is an error, because it would be missing.
func (t *exportTable) row(item *export.Item) (*exportRow, error) {
	row := rowOf(item, t.flat)
	for i := range t.parts {
		if err := onlyKnown(t.parts[i], row.parts[i].result, item.Key); err != nil {
			return nil, err
		}
	}
	return row, cmp.Or(onlyKnown(t.payload, row.payload, item.Key), onlyKnown(t.result, row.result, item.Key))
}

func onlyKnown(known map[string]bool, fields map[string]json.RawMessage, key string) error {
	for name := range fields {
		if known != nil && !known[name] {
			return fmt.Errorf("field %q of %q came after the columns were chosen; export again", name, key)
		}
	}
	return nil
}
