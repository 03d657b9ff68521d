package yearend

import (
	"math"
	"time"

	"codeberg.org/go-pdf/fpdf"
)

// The chart has two scales with the same four lines across: bars on the left, balances on the right.
const (
	gridLines             = 4
	plotLeft, plotRight   = left + 13, right - 15
	plotHigh              = 38.0
	barWide, betweenBars  = 3.6, 0.5
	minStep               = 100 // cents: labels have none
	monthWide             = (plotRight - plotLeft) / 12.0
	pointRadius, lineWide = 0.85, 0.55
)

// scale turns cents into millimetres above the bottom.
type scale struct{ low, step int64 }

func (s scale) height(cents int64) float64 {
	return plotHigh * float64(cents-s.low) / float64(gridLines*s.step)
}

// scaleFor is the finest with round steps whose four steps hold all of low to high.
func scaleFor(low, high int64) scale {
	for power := int64(minStep); ; power *= 10 {
		for _, factor := range []int64{1, 2, 5} {
			step := factor * power
			bottom := floorTo(low, step)
			if bottom+gridLines*step >= high || step > math.MaxInt64/100 {
				return scale{low: bottom, step: step}
			}
		}
	}
}

func floorTo(n, step int64) int64 {
	rest := n % step
	if rest < 0 {
		rest += step
	}
	return n - rest
}

// chart draws what came in and went out as bars, and the balance as a line over them.
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
		s.textMiddle(middle, bottom+4.2, font{"", 7, grey}, time.Month(i + 1).String()[:3])
	}
	s.rule(plotLeft, bottom, plotRight, bottom, 0.3, grey)
	s.balance(bottom, line, p.Account.Opening, balances)
}

func (s sheet) grid(bottom float64, bars, balances scale) {
	for i := range int64(gridLines + 1) {
		y := bottom - plotHigh*float64(i)/gridLines
		if i > 0 {
			s.rule(plotLeft, y, plotRight, y, 0.15, line)
		}
		s.textRight(plotLeft-2, y+0.9, font{"", 6.5, grey}, short(bars.low+i*bars.step))
		s.text(plotRight+2, y+0.9, font{"", 6.5, navy}, short(balances.low+i*balances.step))
	}
}

func (s sheet) bar(x, bottom, high float64, c colour) {
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

// balance is a line from the year's beginning through the end of each month.
func (s sheet) balance(bottom float64, scale scale, opening int64, balances [12]int64) {
	points := []fpdf.PointType{{X: plotLeft, Y: bottom - scale.height(opening)}}
	for i, cents := range balances {
		points = append(points, fpdf.PointType{X: plotLeft + monthWide*float64(i+1), Y: bottom - scale.height(cents)})
	}
	s.SetLineJoinStyle("round")
	s.path(points, 1.3, white) // a rim, so that it stands out from the bars
	s.path(points, lineWide, navy)
	s.SetDrawColor(white.rgb())
	s.SetFillColor(navy.rgb())
	s.SetLineWidth(0.3)
	for _, point := range points {
		s.Circle(point.X, point.Y, pointRadius, "FD")
	}
}

func (s sheet) path(points []fpdf.PointType, thick float64, c colour) {
	s.SetDrawColor(c.rgb())
	s.SetLineWidth(thick)
	s.MoveTo(points[0].X, points[0].Y)
	for _, point := range points[1:] {
		s.LineTo(point.X, point.Y)
	}
	s.DrawPath("D")
}

// legend names the three, up to the right edge.
func (s sheet) legend(y float64) {
	f := font{"", 8, grey}
	s.box(121, y-2.2, 2.6, 2.6, teal)
	s.text(125, y, f, "money in")
	s.box(142, y-2.2, 2.6, 2.6, coral)
	s.text(146, y, f, "money out")
	s.rule(164, y-0.9, 169.5, y-0.9, lineWide, navy)
	s.SetFillColor(navy.rgb())
	s.Circle(166.75, y-0.9, pointRadius, "F")
	s.textRight(right, y, f, "balance (right)")
}
