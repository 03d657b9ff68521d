package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/itemschema"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/internal/intake/spool"
)

type planInfer struct {
	Items  string `required:"" help:"CSV, NDJSON or Parquet, also gzip or zstd; - is standard input." placeholder:"FILE"`
	Key    string `help:"The column or field with the key of an item. Default: key, then id, then the first column." placeholder:"COLUMN"`
	Format string `enum:",csv,ndjson,parquet" default:"" help:"csv, ndjson or parquet; recognised when absent." placeholder:"FORMAT"`

	Encoding  string            `help:"Of the text: utf-8, latin-1, windows-1252, utf-16, utf-16le or utf-16be." placeholder:"NAME"`
	NoHeader  bool              `help:"CSV begins with its first row."`
	Delimiter string            `help:"Between fields of CSV: comma, semicolon, tab or bar; found when absent." placeholder:"NAME"`
	Columns   []string          `help:"Columns or fields to keep; without a header the names of all columns." placeholder:"NAME"`
	Rename    map[string]string `help:"Another name for a column or field; may stand more than once." placeholder:"OLD=NEW"`
	Types     map[string]string `help:"What a field becomes: number, text, bool or json; may stand more than once." placeholder:"FIELD=TYPE"`

	Rows int `default:"10000" help:"How many rows are looked at." placeholder:"N"`
}

func (p *planInfer) Validate() error { return cli.Within("--rows", &p.Rows, 1_000_000) }

// Run reads the rows here: no server is asked.
func (p *planInfer) Run(term *cli.Console) error {
	file, _, err := cli.OpenItems("--items", p.Items, term.In)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	var look gather.Items
	if look.Delimiter, err = gather.ParseDelimiter(p.Delimiter); err != nil {
		return cli.Usage(fmt.Sprintf("--delimiter %.40q: %v", p.Delimiter, err))
	}
	rows, err := intake.Open(file, intake.Config{Format: intake.Format(p.Format), Key: p.Key, Spool: &spool.Spool{},
		Encoding: p.Encoding, NoHeader: p.NoHeader, Delimiter: look.Separator(),
		Columns: p.Columns, Rename: p.Rename, Types: p.Types})
	if err != nil {
		return cli.Usage(fmt.Sprintf("--items %s: %v", p.Items, err))
	}
	defer func() { _ = rows.Close() }() // as above
	guess, read, err := guessOf(rows, p.Rows)
	if err != nil {
		return cli.Usage(fmt.Sprintf("--items %s: %v", p.Items, err))
	}
	for _, note := range rows.Notes() {
		term.Note("%s", note)
	}
	var text bytes.Buffer
	if err := json.Indent(&text, guess.Schema(), "", "  "); err != nil {
		return fmt.Errorf("write the schema: %w", err)
	}
	term.Note("of %s rows; mend it where others may differ, then: tranche run start --schema FILE, or items: {schema: …} "+
		"in a plan", cli.Count(int64(read)))
	return term.Printf("%s\n", text.Bytes())
}

// guessOf looks at the first rows.
func guessOf(rows *intake.Reader, most int) (guess itemschema.Guess, read int, err error) {
	var item row.Item
	for ; read < most; read++ {
		err := rows.Next(&item)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = guess.Add(item.Payload)
		}
		if err != nil {
			return guess, read, err
		}
	}
	return guess, read, nil
}
