package yearend

import (
	"bytes"
	"fmt"
	"time"

	"codeberg.org/go-pdf/fpdf"
)

// ContentType is that of a PDF.
const ContentType = "application/pdf"

// The page is an A4, in millimetres.
const (
	left, right = 22.0, 190.0
	width       = right - left
	footerTop   = 277.0
)

// PDF draws the statement. The same parts make the same bytes.
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

// newSheet is an empty page, with nothing in it that differs from one time to the next.
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

// sheet draws with the few means that a statement needs. It is not safe for concurrent use.
type sheet struct{ *fpdf.Fpdf }

// colour is 0xRRGGBB.
type colour int

func (c colour) rgb() (r, g, b int) { return int(c) >> 16 & 0xFF, int(c) >> 8 & 0xFF, int(c) & 0xFF }

// The bank's colours.
const (
	ink   colour = 0x172535
	navy  colour = 0x123456
	teal  colour = 0x178A80
	coral colour = 0xE28460
	rust  colour = 0xB45C43 // coral, to write with
	grey  colour = 0x687685
	line  colour = 0xD6DDE5
	mist  colour = 0xF3F6F9
	white colour = 0xFFFFFF
	sky   colour = 0xB0CAE2
)

// font is a face of Helvetica, which no PDF has to bring along.
type font struct {
	style string // "", "B" or "I"
	size  float64
	colour
}

func (s sheet) set(f font) {
	s.SetFont("Helvetica", f.style, f.size)
	s.SetTextColor(f.rgb())
}

// text writes from x on, on the base line y.
func (s sheet) text(x, y float64, f font, text string) {
	s.set(f)
	s.Text(x, y, latin(text))
}

// textRight writes up to x.
func (s sheet) textRight(x, y float64, f font, text string) {
	s.set(f)
	text = latin(text)
	s.Text(x-s.GetStringWidth(text), y, text)
}

// textMiddle writes around x.
func (s sheet) textMiddle(x, y float64, f font, text string) {
	s.set(f)
	text = latin(text)
	s.Text(x-s.GetStringWidth(text)/2, y, text)
}

func (s sheet) box(x, y, w, h float64, c colour) {
	s.SetFillColor(c.rgb())
	s.Rect(x, y, w, h, "F")
}

func (s sheet) rounded(x, y, w, h, radius float64, c colour) {
	s.SetFillColor(c.rgb())
	s.RoundedRect(x, y, w, h, radius, "1234", "F")
}

func (s sheet) rule(x1, y1, x2, y2, thick float64, c colour) {
	s.SetDrawColor(c.rgb())
	s.SetLineWidth(thick)
	s.Line(x1, y1, x2, y2)
}
