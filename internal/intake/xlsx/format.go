package xlsx

import (
	"encoding/xml"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/xuri/nfp"
)

// form is how a value of a cell is written in a row.
type form int

const (
	asText      form = iota
	asWritten        // a number, true or false
	asShownElse      // a number that is shown in another way: as percents, money, a fraction
)

// format is how a cell shows a number.
type format struct {
	plain                bool // in its digits
	date, time, duration bool // duration: hours go on after 24
}

// plainFormat is a format that shows a number as somebody writes it.
var plainFormat = regexp.MustCompile(`^(?i:general|@|#|0(\.0+)?)$`)

// formatOf is the format of a style.
func (c *cells) formatOf(style int) format {
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

// builtInFormat is a format by its number. Which of 27 to 36 and of 50 to 58 are times depends on the language.
func builtInFormat(id int) format {
	return format{
		plain:    id <= 2 || id == 49,
		date:     id >= 14 && id <= 17 || id == 22 || id >= 27 && id <= 36 || id >= 50 && id <= 58,
		time:     id >= 18 && id <= 22 || id >= 32 && id <= 35 || id >= 45 && id <= 47 || id == 55 || id == 56,
		duration: id == 46,
	}
}

func parseFormat(code string) (f format) {
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
			case value[0] != 'm' || len(value) > 2: // m and mm may be minutes, and stand beside hours, seconds or days
				f.date = true
			default:
				f.date = f.date || !f.time && !strings.ContainsAny(strings.ToLower(code), "hs")
			}
		}
	}
	return f
}

// read says what a cell is and how it is written, or why it has no form.
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

// number is a number, or a date or time that is kept as one: days, and pieces of them.
func (c *cells) number(of *cell, text string) (form, string, string) {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(n, 0) || math.IsNaN(n) {
		return asText, text, ""
	}
	f := c.formatOf(of.Style)
	if f.date || f.time {
		return c.moment(n, f, text)
	}
	n, _ = strconv.ParseFloat(strconv.FormatFloat(n, 'g', Digits, 64), 64) // it is one
	verb := byte('f')
	if abs := math.Abs(n); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		verb = 'e'
	}
	text = strconv.FormatFloat(n, verb, -1, 64)
	if !f.plain {
		return asShownElse, text, ""
	}
	return asWritten, text, ""
}

const (
	dayMillis = 24 * 60 * 60 * 1000
	lastDay   = 2958465 // 9999-12-31
	days1904  = 1462    // between the two beginnings of days
	leapDay00 = 60      // 1900-02-29, which was none
)

// moment is a date, a time or both.
func (c *cells) moment(n float64, f format, text string) (form, string, string) {
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

// dateOf is the date of a day.
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

// clock writes a time of day, or a duration, in hours, minutes and seconds, and what there is of milliseconds.
func clock(d time.Duration) string {
	text := time.Time{}.Add(d).Format("04:05.999")
	hours := strconv.Itoa(int(d / time.Hour))
	if len(hours) == 1 {
		hours = "0" + hours
	}
	return hours + ":" + text
}

// isoDate is a date that is kept as a text. What has no time but midnight, and shows none, is a date.
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
