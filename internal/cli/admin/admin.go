// Package admin has the commands that are not about runs: those about plans, schedules, alerts, collectors, trackers
// and endpoints, those that look after the system itself, and what the program says of itself. Each noun has its file.
package admin

import (
	"errors"
	"fmt"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/workqueue"
)

// document is what apply did with an alert, a collector, a plan or a schedule: a person writes such a document, apply
// puts it on record, and show prints it as it was applied.
type document struct {
	noun, name        string
	version, previous int // 0: there was none before
	unchanged         bool
	at                time.Time
	by                string
}

// text says what apply did, and then what comes next.
func (d document) text(next string) string {
	text := fmt.Sprintf("%s %s is ", d.noun, cli.EscapeControl(d.name))
	switch {
	case d.unchanged:
		text += fmt.Sprintf("unchanged: version %d, applied %s by %s", d.version, cli.Moment(d.at), cli.EscapeControl(d.by))
	case d.previous > 0:
		text += fmt.Sprintf("version %d now, after version %d", d.version, d.previous)
	default:
		text += fmt.Sprintf("on record, version %d", d.version)
	}
	if next != "" {
		text += "; " + next
	}
	return text
}

// notNegative refuses a --wait that is.
func notNegative(wait time.Duration) error {
	if wait < 0 {
		return fmt.Errorf("--wait is %s; it must not be negative", wait)
	}
	return nil
}

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
