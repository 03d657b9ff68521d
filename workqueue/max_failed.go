package workqueue

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxFailures is the largest number of failures that a plan may allow: as many as any run has items.
const maxFailures = 1<<31 - 1

// ErrMaxFailed says what a threshold may be.
var ErrMaxFailed = errors.New("want a number of items like 500, a percentage of them like 1% or 0.5% up to 100%, " +
	"or none")

// ParseMaxFailed reads how many items may fail before a run pauses: a number, a percentage from 0% to 100% with up to
// four decimals, or none. It returns the one form in which plans and runs keep it: "500", "0.5%", and "" for none.
func ParseMaxFailed(text string) (string, error) {
	if text == "" || text == "none" {
		return "", nil
	}
	share, percent := strings.CutSuffix(text, "%")
	if !percent {
		if n, err := WholeNumber(text); err != nil || n < 0 || n > maxFailures {
			return "", ErrMaxFailed
		}
		return text, nil
	}
	share, ok := canonicalShare(share)
	if !ok {
		return "", ErrMaxFailed
	}
	return share + "%", nil
}

// canonicalShare takes off the zeros at the end of a number from 0 to 100 with up to four decimals.
func canonicalShare(share string) (canonical string, ok bool) {
	whole, decimals, dot := strings.Cut(share, ".")
	n, err := WholeNumber(whole)
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

// percentUnit is a percent in the units that a threshold is counted in: four decimals of a percent are told apart.
const percentUnit = 10_000

// FailedLimit is how many of so many items may fail before their run is held, by what [ParseMaxFailed] reads; of a part
// of them it is rounded down. It is limited unless maxFailed is none. Any other text is a *SettingError.
func FailedLimit(maxFailed string, items int64) (limit int64, limited bool, err error) {
	text, err := ParseMaxFailed(maxFailed)
	if err != nil {
		return 0, false, &SettingError{fmt.Sprintf("max failed is %.40q; %v", maxFailed, err)}
	}
	if text == "" {
		return 0, false, nil
	}
	share, part := strings.CutSuffix(text, "%")
	if !part {
		n, err := strconv.ParseInt(text, 10, 64)
		return n, err == nil, err
	}
	whole, decimals, _ := strings.Cut(share, ".")
	units, err := strconv.ParseInt(whole+decimals+strings.Repeat("0", 4-len(decimals)), 10, 64)
	return items * units / (100 * percentUnit), err == nil, err
}
