package demokit

import (
	"os"
	"slices"
	"strings"
)

// Environment is this process's, without what would lead a child elsewhere, and with more.
func Environment(more ...string) []string {
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
