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

type colour struct{ r, g, b int }

// The bank's colours.
var ( //nolint:gochecknoglobals // constants, but for the language
	ink   = colour{23, 37, 53}
	navy  = colour{18, 52, 86}
	teal  = colour{23, 138, 128}
	coral = colour{226, 132, 96}
	grey  = colour{104, 118, 133}
	line  = colour{214, 221, 229}
	mist  = colour{243, 246, 249}
	white = colour{255, 255, 255}
	sky   = colour{176, 202, 226}
)

// font is a face of Helvetica, which no PDF has to bring along.
type font struct {
	style string // "", "B" or "I"
	size  float64
	colour
}

func (s sheet) set(f font) {
	s.SetFont("Helvetica", f.style, f.size)
	s.SetTextColor(f.r, f.g, f.b)
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
	s.SetFillColor(c.r, c.g, c.b)
	s.Rect(x, y, w, h, "F")
}

func (s sheet) rounded(x, y, w, h, radius float64, c colour) {
	s.SetFillColor(c.r, c.g, c.b)
	s.RoundedRect(x, y, w, h, radius, "1234", "F")
}

func (s sheet) rule(x1, y1, x2, y2, thick float64, c colour) {
	s.SetDrawColor(c.r, c.g, c.b)
	s.SetLineWidth(thick)
	s.Line(x1, y1, x2, y2)
}
