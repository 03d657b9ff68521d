package gather

import (
	"errors"
	"strconv"
	"strings"
)

// maxFailures is the largest number of failures that a plan may allow: more than any run has items.
const maxFailures = 1 << 31

var errFailures = errors.New("want a number of items like 500, a percentage of them like 1% or 0.5%, or none")

// ParseMaxFailed reads how many items may fail before a run pauses: a number, a percentage from 0% to 100% with up to
// three decimals, or none. It returns the one form in which plans and runs keep it: "500", "0.5%", and "" for none.
func ParseMaxFailed(text string) (string, error) {
	if text == "" || text == "none" {
		return "", nil
	}
	share, percent := strings.CutSuffix(text, "%")
	if !percent {
		if n, err := wholeNumber(text); err != nil || n < 0 || n > maxFailures {
			return "", errFailures
		}
		return text, nil
	}
	whole, decimals, _ := strings.Cut(share, ".")
	n, err := wholeNumber(whole)
	if err != nil || n < 0 || n > 100 || len(decimals) > 3 || strings.HasSuffix(share, ".") {
		return "", errFailures
	}
	for _, c := range decimals {
		if c < '0' || c > '9' {
			return "", errFailures
		}
	}
	decimals = strings.TrimRight(decimals, "0")
	switch {
	case decimals == "":
		return strconv.Itoa(n) + "%", nil
	case n == 100:
		return "", errFailures
	}
	return strconv.Itoa(n) + "." + decimals + "%", nil
}
