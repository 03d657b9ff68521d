package runs

import (
	"time"

	"github.com/tranchehq/tranche/internal/api/kernel"
)

// runTag is weak: what only the clock changes is no change.
func runTag(run *RunDocument) (string, error) {
	still := *run
	still.At, still.Seconds = time.Time{}, 0
	sum, err := kernel.PrintOf(&still)
	return `W/"` + sum + `"`, err
}

func itemsTag(items *KeyItems) (string, error) {
	sum, err := kernel.PrintOf(items)
	return `"` + sum + `"`, err
}
