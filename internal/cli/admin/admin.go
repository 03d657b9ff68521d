// Package admin has the commands that are not about runs: those about plans, schedules, alerts, collectors, trackers
// and endpoints, those that look after the system itself, and what the program says of itself. Each noun has its file.
package admin

import (
	"errors"

	"github.com/tranchehq/tranche/workqueue"
)

// chosenOnce refuses a command that names neither some things nor --all, or both: what is meant must be spelled out.
func chosenOnce(all, some bool, which, either string) error {
	switch {
	case all && some:
		return errors.New(either)
	case !all && !some:
		return errors.New("say which " + which)
	}
	return nil
}

// sizeText is a limit of bytes; 0: there is none.
func sizeText(n int64) string {
	if n == 0 {
		return "-"
	}
	return workqueue.Bytes(n).String()
}
