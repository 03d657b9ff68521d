package intake

import (
	"archive/zip"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/xuri/excelize/v2"
	"github.com/xuri/nfp"
)

type cell struct {
	Ref     string    `xml:"r,attr"`
	Type    string    `xml:"t,attr"`
	Style   int       `xml:"s,attr"`
	Value   *string   `xml:"v"` // nil: not computed
	Formula *struct{} `xml:"f"`
}

// cells reads the cells of a sheet, a row at a time. excelize returns cells as texts; it gives their types and
// formats only for a sheet that is entirely in memory. So both are read from the sheet's XML in parallel.
type cells struct {
	file    *excelize.File
	since04 bool // days count from 1904
	formats map[int]numberFormat

	part    io.ReadCloser
	decoder *xml.Decoder
	at      int // the last row whose start was read; 0: none
	all     []cell
}

var errDamagedWorkbook = errors.New("it is damaged")

func openCells(input io.ReaderAt, size int64, file *excelize.File) (*cells, error) {
	parts, err := zip.NewReader(input, size)
	if err != nil {
		return nil, badWorkbook("%v", err)
	}
	name, err := firstSheet(parts)
	if err != nil {
		return nil, badWorkbook("%v", err)
	}
	part, err := parts.Open(name)
	if err != nil {
		return nil, badWorkbook("%v", err)
	}
	c := &cells{file: file, formats: map[int]numberFormat{}, part: part, decoder: xml.NewDecoder(part)}
	props, err := file.GetWorkbookProps()
	c.since04 = err == nil && props.Date1904 != nil && *props.Date1904
	return c, nil
}

type relations struct {
	All []struct {
		ID     string `xml:"Id,attr"`
		Type   string `xml:"Type,attr"`
		Target string `xml:"Target,attr"`
	} `xml:"Relationship"`
}

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
		return "", errors.Join(err, errDamagedWorkbook)
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
	return "", errDamagedWorkbook
}

func readPart(parts *zip.Reader, name string, to any) error {
	part, err := parts.Open(name)
	if err != nil {
		return err
	}
	err = xml.NewDecoder(io.LimitReader(part, maxWorkbookPart)).Decode(to)
	return errors.Join(err, part.Close())
}

// row returns the first cells of a row. Rows must be read in order.
func (c *cells) row(number, wide int) ([]cell, error) {
	c.all = slices.Grow(c.all[:0], wide)[:wide]
	clear(c.all)
	for c.at < number {
		if err := c.nextRow(); err != nil {
			return nil, badWorkbook("row %d: %v", number, err)
		}
	}
	if c.at > number {
		return nil, badWorkbook("row %d: %v", number, errDamagedWorkbook)
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
			return nil, badWorkbook("row %d: %v", number, err)
		}
	}
}

// take reads a cell and returns its column: the next, unless the cell names another.
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
			err = errDamagedWorkbook
		}
		c.at = number
		return err
	}
}

type form int

const (
	asText      form = iota
	asWritten        // a number, true or false
	asShownElse      // a number shown otherwise: as percents, money, a fraction
)

type numberFormat struct {
	plain                bool // by its digits
	date, time, duration bool // duration: hours go beyond 24
}

var plainFormat = regexp.MustCompile(`^(?i:general|@|#|0(\.0+)?)$`)

func (c *cells) formatOf(style int) numberFormat {
	f, known := c.formats[style]
	if known {
		return f
	}
	s, err := c.file.GetStyle(style)
	switch {
	case err != nil:
		f.plain = true
	case s.CustomNumFmt != nil:
		f = parseFormat(*s.CustomNumFmt)
	default:
		f = builtInFormat(s.NumFmt)
	}
	c.formats[style] = f
	return f
}

// builtInFormat returns a format by its number. Which of 27 to 36 and of 50 to 58 are times depends on the
// language.
func builtInFormat(id int) numberFormat {
	return numberFormat{
		plain:    id <= 2 || id == 49,
		date:     id >= 14 && id <= 17 || id == 22 || id >= 27 && id <= 36 || id >= 50 && id <= 58,
		time:     id >= 18 && id <= 22 || id >= 32 && id <= 35 || id >= 45 && id <= 47 || id == 55 || id == 56,
		duration: id == 46,
	}
}

func parseFormat(code string) (f numberFormat) {
	f.plain = plainFormat.MatchString(code)
	parser := nfp.NumberFormatParser()
	for _, section := range parser.Parse(code) {
		for _, token := range section.Items {
			value := strings.ToLower(token.TValue)
			switch {
			case token.TType == nfp.TokenTypeElapsedDateTimes:
				f.time, f.duration = true, true
			case token.TType != nfp.TokenTypeDateTimes:
			case strings.ContainsAny(value[:1], "hsa上下"):
				f.time = true
			case value[0] != 'm' || len(value) > 2: // m and mm may be minutes, next to hours, seconds or days
				f.date = true
			default:
				f.date = f.date || !f.time && !strings.ContainsAny(strings.ToLower(code), "hs")
			}
		}
	}
	return f
}

// read returns a cell's form and text, or the reason why it has none.
func (c *cells) read(of *cell, text string) (form, string, string) {
	switch {
	case of.Type == "e":
		return asText, text, "holds the error " + text + "; write a value into it"
	case of.Formula != nil && (of.Value == nil || *of.Value == "" && of.Type != "str"):
		return asText, text, "has a formula without a value; write the value, or open the workbook in a spreadsheet " +
			"program and save it"
	case of.Type == "b" && text == "1":
		return asWritten, "true", ""
	case of.Type == "b" && text == "0":
		return asWritten, "false", ""
	case of.Type == "d":
		return c.isoDate(of, text)
	case of.Type == "" || of.Type == "n":
		return c.number(of, text)
	}
	return asText, text, ""
}

// maxExact is where numbers begin that have more digits than a spreadsheet keeps.
const maxExact = 1e15

var longNumber = regexp.MustCompile(`^-?[1-9][0-9]{15,}$`)

// number reads a number, or a date or time stored as days and fractions of days.
func (c *cells) number(of *cell, text string) (form, string, string) {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(n, 0) || math.IsNaN(n) {
		return asText, text, ""
	}
	f := c.formatOf(of.Style)
	if f.date || f.time {
		return c.moment(n, f, text)
	}
	if !longNumber.MatchString(text) { // which some programs keep, and only rounding would change
		if d, _ := parseDecimal(text); math.Abs(n) >= maxExact && len(d.digits) >= XLSXDigits {
			return asText, text, "holds " + text + ", which a spreadsheet may have rounded; format the cell as text, and " +
				"enter all digits"
		}
		n, _ = strconv.ParseFloat(strconv.FormatFloat(n, 'g', XLSXDigits, 64), 64) // it is one
		verb := byte('f')
		if abs := math.Abs(n); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
			verb = 'e'
		}
		text = strconv.FormatFloat(n, verb, -1, 64)
	}
	if !f.plain {
		return asShownElse, text, ""
	}
	return asWritten, text, ""
}

const (
	dayMillis = 24 * 60 * 60 * 1000
	lastDay   = 2958465 // 9999-12-31
	days1904  = 1462    // between the two epochs
	leapDay00 = 60      // 1900-02-29, which did not exist
)

func (c *cells) moment(n float64, f numberFormat, text string) (form, string, string) {
	whole, millis := math.Floor(n), math.Round((n-math.Floor(n))*dayMillis)
	if millis == dayMillis {
		whole, millis = whole+1, 0
	}
	rest := time.Duration(millis) * time.Millisecond
	timeOnly := whole == 0 && f.time && (!f.date || !c.since04)
	if timeOnly || f.duration && n >= 0 && n <= lastDay {
		return asText, clock(time.Duration(whole)*24*time.Hour + rest), ""
	}
	at, ok := c.dateOf(whole)
	switch {
	case !ok:
		return asText, text, "holds " + text + " as a date or time, and there is no such one; format the cell as text, and " +
			"write the date as 2024-12-31 or the time as 23:59:59"
	case rest == 0 && !f.time:
		return asText, at.Format(time.DateOnly), ""
	default:
		return asText, at.Format(time.DateOnly) + "T" + clock(rest), ""
	}
}

func (c *cells) dateOf(whole float64) (time.Time, bool) {
	if c.since04 {
		whole += days1904
	}
	if whole < 1 || whole > lastDay || whole == leapDay00 {
		return time.Time{}, false
	}
	if whole < leapDay00 {
		whole++
	}
	return time.Date(1899, 12, 30, 0, 0, 0, 0, time.UTC).AddDate(0, 0, int(whole)), true
}

// clock formats a time of day or a duration as hours, minutes, seconds and any milliseconds.
func clock(d time.Duration) string {
	text := time.Time{}.Add(d).Format("04:05.999")
	hours := strconv.Itoa(int(d / time.Hour))
	if len(hours) == 1 {
		hours = "0" + hours
	}
	return hours + ":" + text
}

// isoDate reads a date stored as text. Midnight in a format without time is a date only.
func (c *cells) isoDate(of *cell, text string) (form, string, string) {
	if f := c.formatOf(of.Style); !f.time {
		text = strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(text, "Z"), ".000"), "T00:00:00")
	}
	return asText, text, ""
}

func rowNumber(start *xml.StartElement, next int) (int, error) {
	for _, a := range start.Attr {
		if a.Name.Local == "r" {
			return strconv.Atoi(a.Value)
		}
	}
	return next, nil
}
