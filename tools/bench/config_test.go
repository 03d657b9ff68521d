package main

import (
	"io"
	"strings"
	"testing"
)

func TestParseFlags(t *testing.T) {
	t.Parallel()
	c, err := parseFlags([]string{"-only", "tranche,latency", "-items", "5", "-json"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if !c.wants("latency") || c.wants("river") || c.items != 5 || c.format != formatJSON {
		t.Errorf("parsed %+v", c)
	}
}

func TestParseFlagsRefuses(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"-only floors":                 `there is no part "floors"`,
		"-items 0":                     "must be at least 1",
		"-keys sorted":                 `-keys is "sorted"`,
		"-json -markdown":              "not both",
		"-only tranche -write page.md": "a run of all parts",
		"tranche":                      `"tranche" is not a flag`,
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			if _, err := parseFlags(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one with %q", err, want)
			}
		})
	}
}
