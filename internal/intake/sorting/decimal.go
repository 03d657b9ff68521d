package sorting

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"
)

// decimal is a number of any size, exactly: sign × 0.digits × 10^point. Its zero value is zero. It takes as much memory
// as the number's text, whatever the exponent.
type decimal struct {
	sign   int
	digits string // without zeros at either end
	point  int64
}

// maxPoint bounds exponents: numbers further out than it have the same one.
const maxPoint = 1 << 62

var decimalText = regexp.MustCompile(`^(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?$`)

// parseDecimal reads a number as JSON writes it; it may have zeros in front as well.
func parseDecimal(text string) (decimal, bool) {
	parts := decimalText.FindStringSubmatch(text)
	if parts == nil {
		return decimal{}, false
	}
	all := parts[2] + parts[3]
	leading := len(all) - len(strings.TrimLeft(all, "0"))
	d := decimal{sign: 1, digits: strings.Trim(all, "0")}
	if d.digits == "" {
		return decimal{}, true
	}
	if parts[1] == "-" {
		d.sign = -1
	}
	exponent, _ := strconv.ParseInt(parts[4], 10, 64) // no exponent is 0, and one out of range the nearest
	d.point = min(max(exponent, -maxPoint), maxPoint) + int64(len(parts[2])-leading)
	return d, true
}

func (d *decimal) compare(other *decimal) int {
	return cmp.Or(cmp.Compare(d.sign, other.sign),
		d.sign*cmp.Or(cmp.Compare(d.point, other.point), cmp.Compare(d.digits, other.digits)))
}
