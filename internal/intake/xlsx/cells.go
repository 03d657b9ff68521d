package xlsx

import (
	"archive/zip"
	"encoding/xml"
	"errors"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/xuri/excelize/v2"
)

// cell is what the sheet says of one.
type cell struct {
	Ref     string    `xml:"r,attr"`
	Type    string    `xml:"t,attr"`
	Style   int       `xml:"s,attr"`
	Value   *string   `xml:"v"` // nil: none was computed
	Formula *struct{} `xml:"f"`
}

// cells reads the cells of a sheet, a row at a time.
type cells struct {
	file    *excelize.File
	since04 bool // days are counted from 1904 on
	formats map[int]format

	part    io.ReadCloser
	decoder *xml.Decoder
	at      int // the row whose start was read; 0: none
	all     []cell
}

var errDamaged = errors.New("it is damaged")

// openCells finds the part of a workbook that is its first sheet.
func openCells(input io.ReaderAt, size int64, file *excelize.File) (*cells, error) {
	parts, err := zip.NewReader(input, size)
	if err != nil {
		return nil, bad("%v", err)
	}
	name, err := firstSheet(parts)
	if err != nil {
		return nil, bad("%v", err)
	}
	part, err := parts.Open(name)
	if err != nil {
		return nil, bad("%v", err)
	}
	c := &cells{file: file, formats: map[int]format{}, part: part, decoder: xml.NewDecoder(part)}
	props, err := file.GetWorkbookProps()
	c.since04 = err == nil && props.Date1904 != nil && *props.Date1904
	return c, nil
}

// relations are where the parts are that one refers to.
type relations struct {
	All []struct {
		ID     string `xml:"Id,attr"`
		Type   string `xml:"Type,attr"`
		Target string `xml:"Target,attr"`
	} `xml:"Relationship"`
}

// firstSheet is the name of the part that is the first sheet.
func firstSheet(parts *zip.Reader) (string, error) {
	var top, of relations
	if err := readPart(parts, "_rels/.rels", &top); err != nil {
		return "", err
	}
	book := ""
	for _, r := range top.All {
		if strings.HasSuffix(r.Type, "/officeDocument") {
			book = path.Join("/", r.Target)[1:]
		}
	}
	var sheets struct {
		All []struct {
			Relation string `xml:"http://schemas.openxmlformats.org/officeDocument/2006/relationships id,attr"`
			Strict   string `xml:"http://purl.oclc.org/ooxml/officeDocument/relationships id,attr"`
		} `xml:"sheets>sheet"`
	}
	err := readPart(parts, book, &sheets)
	if err == nil {
		err = readPart(parts, path.Join(path.Dir(book), "_rels", path.Base(book)+".rels"), &of)
	}
	if err != nil || len(sheets.All) == 0 {
		return "", errors.Join(err, errDamaged)
	}
	for _, r := range of.All {
		switch {
		case r.ID != sheets.All[0].Relation+sheets.All[0].Strict:
		case strings.HasPrefix(r.Target, "/"):
			return path.Clean(r.Target)[1:], nil
		default:
			return path.Join(path.Dir(book), r.Target), nil
		}
	}
	return "", errDamaged
}

func readPart(parts *zip.Reader, name string, to any) error {
	part, err := parts.Open(name)
	if err != nil {
		return err
	}
	err = xml.NewDecoder(io.LimitReader(part, maxPart)).Decode(to)
	return errors.Join(err, part.Close())
}

// row returns what the sheet says of the first cells of a row. Rows are asked for in order.
func (c *cells) row(number, wide int) ([]cell, error) {
	c.all = slices.Grow(c.all[:0], wide)[:wide]
	clear(c.all)
	for c.at < number {
		if err := c.nextRow(); err != nil {
			return nil, bad("row %d: %v", number, err)
		}
	}
	if c.at > number {
		return nil, bad("row %d: %v", number, errDamaged)
	}
	for column := 0; ; {
		token, err := c.decoder.Token()
		switch t := token.(type) {
		case xml.EndElement:
			if t.Name.Local == "row" {
				return c.all, nil
			}
		case xml.StartElement:
			if t.Name.Local == "c" {
				column, err = c.take(&t, column+1)
			}
		}
		if err != nil {
			return nil, bad("row %d: %v", number, err)
		}
	}
}

// take reads a cell, and returns its column: the next, unless it says another.
func (c *cells) take(start *xml.StartElement, column int) (int, error) {
	var read cell
	if err := c.decoder.DecodeElement(&read, start); err != nil {
		return 0, err
	}
	if read.Ref != "" {
		var err error
		if column, _, err = excelize.CellNameToCoordinates(read.Ref); err != nil {
			return 0, err
		}
	}
	if column <= len(c.all) {
		c.all[column-1] = read
	}
	return column, nil
}

// nextRow goes to the start of the next row.
func (c *cells) nextRow() error {
	for {
		token, err := c.decoder.Token()
		if err != nil {
			return err
		}
		start, ok := token.(xml.StartElement)
		if !ok || start.Name.Local != "row" {
			continue
		}
		number, err := rowNumber(&start, c.at+1)
		if err == nil && number <= c.at {
			err = errDamaged
		}
		c.at = number
		return err
	}
}
