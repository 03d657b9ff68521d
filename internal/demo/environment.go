package demo

import (
	"os"
	"slices"
	"strings"
)

// environment is this process's, without what would lead a child of the demo elsewhere, and with more.
func environment(more ...string) []string {
	leads := func(variable string) bool {
		for _, prefix := range []string{"TRANCHE_", "NATS_", "PG"} {
			if strings.HasPrefix(variable, prefix) {
				return true
			}
		}
		return false
	}
	return append(slices.DeleteFunc(os.Environ(), leads), more...)
}
