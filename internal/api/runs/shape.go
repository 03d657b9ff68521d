package runs

import "github.com/tranchehq/tranche/gather"

// ShapeQuery is how the items of one upload are read, where that is not of a start: as the settings of a run of these
// names.
type ShapeQuery struct {
	Encoding  string   `query:"encoding" doc:"of the text: utf-8, latin-1, windows-1252, utf-16, utf-16le or utf-16be"`
	NoHeader  bool     `query:"no_header" doc:"CSV begins with its first row"`
	Delimiter string   `query:"delimiter" doc:"between fields of CSV: comma, semicolon, tab or bar; found when absent"`
	Columns   []string `query:"columns,explode" doc:"a column or field to keep; without a header the names of all columns"`
	Rename    []string `query:"rename,explode" doc:"another name for a column or field, like kontonr=id"`
	Types     []string `query:"types,explode" doc:"what a field becomes, like balance=number: number, text, bool or json"`
}

// Over lays it over what a plan says.
func (q *ShapeQuery) Over(look *gather.Items) (*gather.Items, error) {
	set := gather.Overrides{Columns: q.Columns, Rename: q.Rename, Types: q.Types}
	if q.Encoding != "" {
		set.Encoding = &q.Encoding
	}
	if q.NoHeader {
		set.NoHeader = &q.NoHeader
	}
	if q.Delimiter != "" {
		set.Delimiter = &q.Delimiter
	}
	plan := gather.Single("any")
	plan.Items = *look
	laid, err := set.Over(plan)
	if err != nil {
		return nil, BadSetting(err)
	}
	return &laid.Items, nil
}
