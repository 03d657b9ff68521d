package workqueue

import (
	"fmt"
	"strconv"
	"strings"
)

// percentUnit is a percent in the units that a threshold is counted in: four decimals of a percent are told apart.
const percentUnit = 10_000

// FailedLimit is how many of so many items may fail before their run is held. maxFailed is a number of items like
// "500", a part of all items like "1%" or "0.25%", rounded down, or empty for no limit; then limited is false. Any
// other text is a *SettingError.
func FailedLimit(maxFailed string, items int64) (limit int64, limited bool, err error) {
	if maxFailed == "" {
		return 0, false, nil
	}
	wrong := &SettingError{fmt.Sprintf("max failed is %.40q; give a number of items like 500, or a part of them like 1%%",
		maxFailed)}
	text, part := strings.CutSuffix(maxFailed, "%")
	if !part {
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return 0, false, wrong
		}
		return int64(n), true, nil
	}
	whole, decimals, _ := strings.Cut(text, ".")
	if len(decimals) > 4 || strings.HasSuffix(text, ".") {
		return 0, false, wrong
	}
	digits := whole + decimals + strings.Repeat("0", 4-len(decimals))
	units, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || whole == "" || units > 100*percentUnit {
		return 0, false, wrong
	}
	return items * int64(units) / (100 * percentUnit), true, nil
}
