package gather

import (
	"errors"
	"strconv"
	"strings"
)

// maxFailures is the largest number of failures that a plan may allow: as many as any run has items.
const maxFailures = 1<<31 - 1

var errFailures = errors.New("want a number of items like 500, a percentage of them like 1% or 0.5% up to 100%, " +
	"or none")

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
	share, ok := canonicalShare(share)
	if !ok {
		return "", errFailures
	}
	return share + "%", nil
}

// canonicalShare takes off the zeros at the end of a number from 0 to 100 with up to four decimals.
func canonicalShare(share string) (canonical string, ok bool) {
	whole, decimals, dot := strings.Cut(share, ".")
	n, err := wholeNumber(whole)
	if err != nil || n < 0 || n > 100 || dot != (decimals != "") || len(decimals) > 4 {
		return "", false
	}
	if strings.Trim(decimals, "0123456789") != "" {
		return "", false
	}
	decimals = strings.TrimRight(decimals, "0")
	if decimals == "" {
		return strconv.Itoa(n), true
	}
	return strconv.Itoa(n) + "." + decimals, n < 100
}
