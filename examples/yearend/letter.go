package yearend

import (
	"fmt"

	"codeberg.org/go-pdf/fpdf"

	"github.com/tranchehq/tranche/examples/bank"
)

const bankName = "Harbour Savings Bank"

// letterhead is the bank's mark and name, and on the right where the branch is.
func (s sheet) letterhead(b bank.Branch) {
	s.box(0, 0, 210, 3, navy)
	s.box(0, 3, 210, 0.8, teal)
	s.mark(left, 13, 12)
	s.text(left+16, 19.2, font{"B", 15, navy}, "Harbour")
	s.text(left+16, 24.4, font{"", 9.5, grey}, "Savings Bank")

	small := font{"", 8, grey}
	s.textRight(right, 16.2, font{"B", 8, ink}, b.Name+" branch")
	s.textRight(right, 20.1, small, b.Street)
	s.textRight(right, 23.7, small, b.Place)
	s.textRight(right, 27.3, small, b.Phone)
}

// mark is the bank's sign: a sail over two waves.
func (s sheet) mark(x, y, size float64) {
	at := func(u, v float64) fpdf.PointType { return fpdf.PointType{X: x + u*size, Y: y + v*size} }
	s.rounded(x, y, size, size, size*0.22, navy)
	s.SetFillColor(white.rgb())
	s.Polygon([]fpdf.PointType{at(0.53, 0.14), at(0.53, 0.60), at(0.84, 0.60)}, "F")
	s.SetFillColor(sky.rgb())
	s.Polygon([]fpdf.PointType{at(0.46, 0.26), at(0.46, 0.60), at(0.21, 0.60)}, "F")
	s.SetLineWidth(size * 0.06)
	s.SetLineCapStyle("round")
	for i, c := range []colour{white, teal} {
		v := 0.71 + 0.13*float64(i)
		from, middle, to := at(0.18, v), at(0.5, v), at(0.82, v)
		s.SetDrawColor(c.rgb())
		s.Curve(from.X, from.Y, (from.X+middle.X)/2, from.Y+size*0.10, middle.X, middle.Y, "D")
		s.Curve(middle.X, middle.Y, (middle.X+to.X)/2, middle.Y-size*0.10, to.X, to.Y, "D")
	}
	s.SetLineCapStyle("butt")
}

// addressWide is how much of a line the window shows.
const addressWide = 80.0

// address stands where the window of an envelope is.
func (s sheet) address(a bank.Account) {
	s.text(left, 48.5, font{"", 6.5, grey}, bankName+" · Quay 1 · 0150 Harbour")
	s.rule(left, 49.7, left+addressWide, 49.7, 0.15, line)
	for i, text := range []string{a.Owner, a.Street, a.Place} {
		s.text(left, 56.5+5.2*float64(i), s.fitting(text, 10.5, addressWide, font{"", 0, ink}), text)
	}
}

// particulars are the account's, beside the address.
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
		s.text(from, y, font{"", 8, grey}, row[0])
		s.text(to, y, font{"", 8.5, ink}, row[1])
	}
	s.rule(from-4, 45.6, from-4, 70, 0.6, teal)
}

func (s sheet) heading(st Statement) {
	s.text(left, 92, font{"B", 19, navy}, fmt.Sprintf("Year-end statement %d", st.Year))
	s.text(left, 98.2, font{"", 9, grey},
		fmt.Sprintf("1 January to 31 December %d · all amounts in euros", st.Year))
}

// tiles are the year in four numbers. Read relies on each label being followed by its number.
func (s sheet) tiles(st Statement) {
	const top, high, gap = 104.5, 19.0, 3.5
	wide := (width - 3*gap) / 4
	for i, tile := range []struct {
		label   string
		cents   int64
		colours [3]colour // ground, label, number
	}{
		{labelOpening, st.Opening, [3]colour{mist, grey, ink}},
		{labelIn, st.In, [3]colour{mist, grey, teal}},
		{labelOut, st.Out, [3]colour{mist, grey, rust}},
		{labelClosing, st.Closing, [3]colour{navy, sky, white}},
	} {
		x := left + float64(i)*(wide+gap)
		s.rounded(x, top, wide, high, 1.8, tile.colours[0])
		s.text(x+4, top+6.6, font{"", 8, tile.colours[1]}, tile.label)
		number := amount(tile.cents)
		s.text(x+4, top+14, s.fitting(number, 13, wide-8, font{"B", 0, tile.colours[2]}), number)
	}
}

// fitting is the font in the greatest size, up to most, in which the text is no wider than that.
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
	small := font{"", 7, grey}
	s.text(left, footerTop+4.4, small,
		"Please check this statement and tell your branch within six weeks if anything is wrong.")
	s.text(left, footerTop+8, small,
		bankName+" · Quay 1 · 0150 Harbour · made by the bank of an example; no real money is meant")
	s.textRight(right, footerTop+4.4, small, "Account "+st.Number)
	s.textRight(right, footerTop+8, small, "Page 1 of 1")
}

// day writes 2009-05-31 as people do; anything else it leaves alone.
func day(text string) string {
	t, err := parseDay(text)
	if err != nil {
		return text
	}
	return t.Format("2 January 2006")
}
