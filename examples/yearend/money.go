package yearend

import (
	"strconv"
	"strings"
)

// minus is an en dash; a hyphen is too short beside digits, and the fonts have no minus sign.
const minus = "–"

// amount writes cents with separators: 1,234.56.
func amount(cents int64) string {
	sign := ""
	if cents < 0 {
		sign, cents = minus, -cents
	}
	return sign + grouped(cents/100) + "." + strconv.FormatInt(100+cents%100, 10)[1:]
}

// grouped writes a number that is not negative with separators: 1,234,567.
func grouped(n int64) string {
	digits := strconv.FormatInt(n, 10)
	var b strings.Builder
	for i, digit := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(digit)
	}
	return b.String()
}

// short writes cents for an axis, without cents: 1,200 or 1.5 M.
func short(cents int64) string {
	sign, whole := "", cents/100
	if whole < 0 {
		sign, whole = minus, -whole
	}
	for _, unit := range []struct {
		size int64
		name string
	}{{1_000_000_000, " bn"}, {1_000_000, " M"}} {
		if whole >= unit.size {
			return sign + strconv.FormatFloat(float64(whole)/float64(unit.size), 'f', -1, 64) + unit.name
		}
	}
	return sign + grouped(whole)
}
