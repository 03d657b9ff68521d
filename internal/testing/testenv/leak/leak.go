// Package leak finds goroutines that a package's tests left running. It is separate from testenv for the tests of
// packages that testenv imports.
package leak

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/goleak"
)

const patience = time.Minute

// Check returns 1 if all tests passed but left goroutines running, else code. A failed test may leave goroutines.
func Check(code int, ignore ...goleak.Option) int {
	if code != 0 {
		return code
	}
	limit := time.Now().Add(patience)
	for {
		err := goleak.Find(ignore...) // it waits a little itself
		if err == nil {
			return 0
		}
		if time.Now().After(limit) {
			fmt.Fprintln(os.Stderr, "goroutines left running:", err)
			return 1
		}
	}
}
