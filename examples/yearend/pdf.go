package yearend

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"time"

	"codeberg.org/go-pdf/fpdf"
	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/charmap"

	"github.com/tranchehq/tranche/examples/bank"
)

// ContentType is the content type of PDF.
const ContentType = "application/pdf"

// Dimensions of the A4 page, in millimeters.
const (
	left, right = 22.0, 190.0
	width       = right - left
	footerTop   = 277.0
)

// PDF draws the statement. Equal parts give equal bytes.
func (p *Parts) PDF() ([]byte, error) {
	s, err := p.Statement()
	if err != nil {
		return nil, err
	}
	page := newSheet(s)
	page.letterhead(p.Branch)
	page.address(p.Account)
	page.particulars(p)
	page.heading(s)
	page.tiles(s)
	page.chart(p, 143)
	page.table(p, s, 198)
	page.footer(s)
	var out bytes.Buffer
	if err := page.Output(&out); err != nil {
		return nil, fmt.Errorf("draw the statement of account %d: %w", p.Account.Account, err)
	}
	return out.Bytes(), nil
}

// newSheet returns an empty page, with nothing that varies between calls.
func newSheet(s Statement) sheet {
	pdf := fpdf.New("P", "mm", "A4", "")
	closed := time.Date(s.Year, time.December, 31, 23, 59, 59, 0, time.UTC)
	pdf.SetCreationDate(closed)
	pdf.SetModificationDate(closed)
	pdf.SetCatalogSort(true)
	pdf.SetProducer("Tranche", false)
	pdf.SetTitle(fmt.Sprintf("Year-end statement %d, account %s", s.Year, s.Number), true)
	pdf.SetAuthor(bankName, true)
	pdf.SetLang("en")
	pdf.SetMargins(0, 0, 0)
	pdf.SetCellMargin(0)
	pdf.SetAutoPageBreak(false, 0)
	pdf.AddPage()
	return sheet{pdf}
}

// sheet has the drawing functions of a statement. It is not safe for concurrent use.
type sheet struct{ *fpdf.Fpdf }

// color is 0xRRGGBB.
type color int

func (c color) rgb() (r, g, b int) { return int(c) >> 16 & 0xFF, int(c) >> 8 & 0xFF, int(c) & 0xFF }

const (
	ink   color = 0x172535
	navy  color = 0x123456
	teal  color = 0x178A80
	coral color = 0xE28460
	rust  color = 0xB45C43 // coral, for text
	gray  color = 0x687685
	line  color = 0xD6DDE5
	mist  color = 0xF3F6F9
	white color = 0xFFFFFF
	sky   color = 0xB0CAE2
)

// font is a face of Helvetica, which need not be embedded in PDFs.
type font struct {
	style string // "", "B" or "I"
	size  float64
	color
}

func (s sheet) set(f font) {
	s.SetFont("Helvetica", f.style, f.size)
	s.SetTextColor(f.rgb())
}

// text writes text starting at x, on baseline y.
func (s sheet) text(x, y float64, f font, text string) {
	s.set(f)
	s.Text(x, y, latin(text))
}

func (s sheet) textRight(x, y float64, f font, text string) {
	s.set(f)
	text = latin(text)
	s.Text(x-s.GetStringWidth(text), y, text)
}

func (s sheet) textMiddle(x, y float64, f font, text string) {
	s.set(f)
	text = latin(text)
	s.Text(x-s.GetStringWidth(text)/2, y, text)
}

func (s sheet) box(x, y, w, h float64, c color) {
	s.SetFillColor(c.rgb())
	s.Rect(x, y, w, h, "F")
}

func (s sheet) rounded(x, y, w, h, radius float64, c color) {
	s.SetFillColor(c.rgb())
	s.RoundedRect(x, y, w, h, radius, "1234", "F")
}

func (s sheet) rule(x1, y1, x2, y2, thick float64, c color) {
	s.SetDrawColor(c.rgb())
	s.SetLineWidth(thick)
	s.Line(x1, y1, x2, y2)
}

// latin converts text to Windows-1252, the encoding of PDF's standard fonts; others become question marks.
func latin(text string) string {
	text, _ = encoding.ReplaceUnsupported(charmap.Windows1252.NewEncoder()).String(text) // it never fails
	return strings.ReplaceAll(text, "\x1a", "?")
}

// The chart has two scales with four common grid lines: bars on the left, balances on the right.
const (
	gridLines             = 4
	plotLeft, plotRight   = left + 13, right - 15
	plotHigh              = 38.0
	barWide, betweenBars  = 3.6, 0.5
	minStep               = 100 // cents: labels have none
	monthWide             = (plotRight - plotLeft) / 12.0
	pointRadius, lineWide = 0.85, 0.55
)

// scale converts cents to millimeters above the bottom.
type scale struct{ low, step int64 }

func (s scale) height(cents int64) float64 {
	return plotHigh * float64(cents-s.low) / float64(gridLines*s.step)
}

// scaleFor returns the finest scale of four round steps that contains low to high.
func scaleFor(low, high int64) scale {
	for power := int64(minStep); ; power *= 10 {
		for _, factor := range []int64{1, 2, 5} {
			step := factor * power
			bottom := low - (low%step+step)%step // a multiple of step, also below zero
			if bottom+gridLines*step >= high || step > math.MaxInt64/100 {
				return scale{low: bottom, step: step}
			}
		}
	}
}

func (s sheet) chart(p *Parts, top float64) {
	s.text(left, top-8, font{"B", 10, navy}, "Month by month")
	s.legend(top - 8)
	balances := p.balances()
	var most int64
	low, high := min(p.Account.Opening, 0), p.Account.Opening
	for i, month := range p.Year.Months {
		most = max(most, month.In, month.Out)
		low, high = min(low, balances[i]), max(high, balances[i])
	}
	bars, line := scaleFor(0, most), scaleFor(low, high)
	bottom := top + plotHigh
	s.grid(bottom, bars, line)
	for i, month := range p.Year.Months {
		middle := plotLeft + monthWide*(float64(i)+0.5)
		s.bar(middle-barWide-betweenBars/2, bottom, bars.height(month.In), teal)
		s.bar(middle+betweenBars/2, bottom, bars.height(month.Out), coral)
		s.textMiddle(middle, bottom+4.2, font{"", 7, gray}, time.Month(i + 1).String()[:3])
	}
	s.rule(plotLeft, bottom, plotRight, bottom, 0.3, gray)
	s.balance(bottom, line, p.Account.Opening, balances)
}

func (s sheet) grid(bottom float64, bars, balances scale) {
	for i := range int64(gridLines + 1) {
		y := bottom - plotHigh*float64(i)/gridLines
		if i > 0 {
			s.rule(plotLeft, y, plotRight, y, 0.15, line)
		}
		s.textRight(plotLeft-2, y+0.9, font{"", 6.5, gray}, short(bars.low+i*bars.step))
		s.text(plotRight+2, y+0.9, font{"", 6.5, navy}, short(balances.low+i*balances.step))
	}
}

func (s sheet) bar(x, bottom, high float64, c color) {
	if high <= 0 {
		return
	}
	s.SetFillColor(c.rgb())
	if high < 1 {
		s.Rect(x, bottom-high, barWide, high, "F")
		return
	}
	s.RoundedRect(x, bottom-high, barWide, high, 0.6, "12", "F")
}

// balance draws a line from the start of the year through the end of each month.
func (s sheet) balance(bottom float64, scale scale, opening int64, balances [12]int64) {
	points := []fpdf.PointType{{X: plotLeft, Y: bottom - scale.height(opening)}}
	for i, cents := range balances {
		points = append(points, fpdf.PointType{X: plotLeft + monthWide*float64(i+1), Y: bottom - scale.height(cents)})
	}
	s.SetLineJoinStyle("round")
	s.path(points, 1.3, white) // a rim, for contrast with the bars
	s.path(points, lineWide, navy)
	s.SetDrawColor(white.rgb())
	s.SetFillColor(navy.rgb())
	s.SetLineWidth(0.3)
	for _, point := range points {
		s.Circle(point.X, point.Y, pointRadius, "FD")
	}
}

func (s sheet) path(points []fpdf.PointType, thick float64, c color) {
	s.SetDrawColor(c.rgb())
	s.SetLineWidth(thick)
	s.MoveTo(points[0].X, points[0].Y)
	for _, point := range points[1:] {
		s.LineTo(point.X, point.Y)
	}
	s.DrawPath("D")
}

func (s sheet) legend(y float64) {
	f := font{"", 8, gray}
	s.box(121, y-2.2, 2.6, 2.6, teal)
	s.text(125, y, f, "money in")
	s.box(142, y-2.2, 2.6, 2.6, coral)
	s.text(146, y, f, "money out")
	s.rule(164, y-0.9, 169.5, y-0.9, lineWide, navy)
	s.SetFillColor(navy.rgb())
	s.Circle(166.75, y-0.9, pointRadius, "F")
	s.textRight(right, y, f, "balance (right)")
}

const bankName = "Harbour Savings Bank"

// letterhead draws the bank's logo and name, and the branch's address on the right.
func (s sheet) letterhead(b bank.Branch) {
	s.box(0, 0, 210, 3, navy)
	s.box(0, 3, 210, 0.8, teal)
	s.mark(left, 13, 12)
	s.text(left+16, 19.2, font{"B", 15, navy}, "Harbour")
	s.text(left+16, 24.4, font{"", 9.5, gray}, "Savings Bank")

	small := font{"", 8, gray}
	s.textRight(right, 16.2, font{"B", 8, ink}, b.Name+" branch")
	s.textRight(right, 20.1, small, b.Street)
	s.textRight(right, 23.7, small, b.Place)
	s.textRight(right, 27.3, small, b.Phone)
}

// mark draws the bank's logo: a sail over two waves.
func (s sheet) mark(x, y, size float64) {
	at := func(u, v float64) fpdf.PointType { return fpdf.PointType{X: x + u*size, Y: y + v*size} }
	s.rounded(x, y, size, size, size*0.22, navy)
	s.SetFillColor(white.rgb())
	s.Polygon([]fpdf.PointType{at(0.53, 0.14), at(0.53, 0.60), at(0.84, 0.60)}, "F")
	s.SetFillColor(sky.rgb())
	s.Polygon([]fpdf.PointType{at(0.46, 0.26), at(0.46, 0.60), at(0.21, 0.60)}, "F")
	s.SetLineWidth(size * 0.06)
	s.SetLineCapStyle("round")
	for i, c := range []color{white, teal} {
		v := 0.71 + 0.13*float64(i)
		from, middle, to := at(0.18, v), at(0.5, v), at(0.82, v)
		s.SetDrawColor(c.rgb())
		s.Curve(from.X, from.Y, (from.X+middle.X)/2, from.Y+size*0.10, middle.X, middle.Y, "D")
		s.Curve(middle.X, middle.Y, (middle.X+to.X)/2, middle.Y-size*0.10, to.X, to.Y, "D")
	}
	s.SetLineCapStyle("butt")
}

// addressWide is the width of the envelope's window.
const addressWide = 80.0

// address writes the address where the envelope's window is.
func (s sheet) address(a bank.Account) {
	s.text(left, 48.5, font{"", 6.5, gray}, bankName+" · Quay 1 · 0150 Harbour")
	s.rule(left, 49.7, left+addressWide, 49.7, 0.15, line)
	for i, text := range []string{a.Owner, a.Street, a.Place} {
		s.text(left, 56.5+5.2*float64(i), s.fitting(text, 10.5, addressWide, font{"", 0, ink}), text)
	}
}

// particulars writes the account's details next to the address.
func (s sheet) particulars(p *Parts) {
	const from, to = 128.0, 152.0
	for i, row := range [][2]string{
		{labelAccount, p.Account.Number},
		{"Kind", p.Account.Kind},
		{"Opened", day(p.Account.Opened)},
		{"Your adviser", p.Branch.Adviser},
		{"Drawn up", fmt.Sprintf("31 December %d", p.Year.Year)},
	} {
		y := 48.5 + 5*float64(i)
		s.text(from, y, font{"", 8, gray}, row[0])
		s.text(to, y, font{"", 8.5, ink}, row[1])
	}
	s.rule(from-4, 45.6, from-4, 70, 0.6, teal)
}

func (s sheet) heading(st Statement) {
	s.text(left, 92, font{"B", 19, navy}, fmt.Sprintf("Year-end statement %d", st.Year))
	s.text(left, 98.2, font{"", 9, gray},
		fmt.Sprintf("1 January to 31 December %d · all amounts in euros", st.Year))
}

// tiles shows the year in four numbers. Read relies on each number following its label.
func (s sheet) tiles(st Statement) {
	const top, high, gap = 104.5, 19.0, 3.5
	wide := (width - 3*gap) / 4
	for i, tile := range []struct {
		label  string
		cents  int64
		colors [3]color // background, label, number
	}{
		{labelOpening, st.Opening, [3]color{mist, gray, ink}},
		{labelIn, st.In, [3]color{mist, gray, teal}},
		{labelOut, st.Out, [3]color{mist, gray, rust}},
		{labelClosing, st.Closing, [3]color{navy, sky, white}},
	} {
		x := left + float64(i)*(wide+gap)
		s.rounded(x, top, wide, high, 1.8, tile.colors[0])
		s.text(x+4, top+6.6, font{"", 8, tile.colors[1]}, tile.label)
		number := amount(tile.cents)
		s.text(x+4, top+14, s.fitting(number, 13, wide-8, font{"B", 0, tile.colors[2]}), number)
	}
}

// fitting returns the font in the largest size, up to most, at which the text fits.
func (s sheet) fitting(text string, most, wide float64, f font) font {
	f.size = most
	s.set(f)
	if is := s.GetStringWidth(latin(text)); is > wide {
		f.size *= wide / is
	}
	return f
}

func (s sheet) footer(st Statement) {
	s.rule(left, footerTop, right, footerTop, 0.2, line)
	small := font{"", 7, gray}
	s.text(left, footerTop+4.4, small,
		"Please check this statement and tell your branch within six weeks if anything is wrong.")
	s.text(left, footerTop+8, small,
		bankName+" · Quay 1 · 0150 Harbour · made by the bank of an example; no real money is meant")
	s.textRight(right, footerTop+4.4, small, "Account "+st.Number)
	s.textRight(right, footerTop+8, small, "Page 1 of 1")
}

// day formats 2009-05-31 for display and leaves other text unchanged.
func day(text string) string {
	t, err := time.Parse(time.DateOnly, text)
	if err != nil {
		return text
	}
	return t.Format("2 January 2006")
}

// Right edges of the columns of numbers.
const (
	endMovements, endIn, endOut, endNet, endBalance = 52.0, 82.0, 112.0, 140.0, width - 2
	rowHigh                                         = 5.05
)

func (s sheet) table(p *Parts, st Statement, top float64) {
	head := font{"B", 7.5, white}
	s.rounded(left, top, width, 6, 1, navy)
	s.text(left+2.5, top+4.1, head, "Month")
	for _, c := range []struct {
		end  float64
		text string
	}{
		{endMovements, "Movements"}, {endIn, labelIn}, {endOut, labelOut}, {endNet, "Change"}, {endBalance, "Balance"},
	} {
		s.textRight(left+c.end, top+4.1, head, c.text)
	}
	balances := p.balances()
	y := top + 6
	for i, month := range p.Year.Months {
		if i%2 == 1 {
			s.box(left, y, width, rowHigh, mist)
		}
		s.row(y, time.Month(i+1).String(), [5]string{
			count(month.Movements), unlessZero(month.In), unlessZero(month.Out), unlessZero(month.In - month.Out),
			amount(balances[i]),
		}, font{"", 8, ink})
		y += rowHigh
	}
	s.rule(left, y+0.2, right, y+0.2, 0.5, navy)
	s.row(y+0.5, labelTotal, [5]string{
		count(st.Movements), amount(st.In), amount(st.Out), amount(st.In - st.Out), amount(st.Closing),
	}, font{"B", 8, navy})
}

func (s sheet) row(y float64, name string, cells [5]string, f font) {
	base := y + 3.6
	s.text(left+2.5, base, f, name)
	for i, end := range [5]float64{endMovements, endIn, endOut, endNet, endBalance} {
		s.textRight(left+end, base, f, cells[i])
	}
}

func count(n int64) string {
	if n == 0 {
		return minus
	}
	return grouped(n)
}

func unlessZero(cents int64) string {
	if cents == 0 {
		return minus
	}
	return amount(cents)
}
