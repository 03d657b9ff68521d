package main

import (
	"io"
	"strings"
	"testing"
)

func TestParseFlagsRefuses(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"-only floors": `there is no part "floors"`,
		"-items 0":     "must be at least 1",
		"-keys sorted": `-keys is "sorted"`,
		"tranche":      `"tranche" is not a flag`,
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			if _, err := parseFlags(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one with %q", err, want)
			}
		})
	}
}
