package yearend

import (
	"time"
)

// Where the columns of numbers end, from the left edge.
const (
	endMovements, endIn, endOut, endNet, endBalance = 52.0, 82.0, 112.0, 140.0, width - 2
	rowHigh                                         = 5.05
)

// table is the year by month, with its totals.
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

func parseDay(text string) (time.Time, error) { return time.Parse(time.DateOnly, text) }
