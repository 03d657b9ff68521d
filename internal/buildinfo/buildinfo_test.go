package buildinfo

import (
	"runtime/debug"
	"testing"
)

func TestOf(t *testing.T) {
	t.Parallel()
	const commit, date = "a27db40c6f1e0d9b8a7c6f5e4d3c2b1a09876543", "2026-11-24T22:57:52Z"
	vcs := []debug.BuildSetting{{Key: "vcs.revision", Value: commit}, {Key: "vcs.time", Value: date}}
	for name, test := range map[string]struct {
		program debug.BuildInfo
		want    string
	}{
		"go install": {debug.BuildInfo{Main: debug.Module{Path: Module, Version: "v0.1.0"}}, "v0.1.0"},
		"go build": {debug.BuildInfo{Main: debug.Module{Path: Module, Version: "(devel)"}, Settings: vcs},
			"dev (a27db40c6f1e, " + date + ")"},
		"a program that depends on it": {debug.BuildInfo{Main: debug.Module{Path: "example.com/own", Version: "v3.0.0"},
			Deps:     []*debug.Module{{Path: "example.com/b", Version: "v2.0.0"}, {Path: Module, Version: "v0.1.1"}},
			Settings: vcs}, "v0.1.1"},
		"neither": {debug.BuildInfo{Main: debug.Module{Path: "example.com/own", Version: "v3.0.0"}}, "dev"},
	} {
		if got := of(&test.program).withDefaults().String(); got != test.want {
			t.Errorf("%s: %q; want %q", name, got, test.want)
		}
	}
}

func TestLinked(t *testing.T) {
	t.Parallel()
	if got, want := Linked("v0.1.0", "a27db40", "2026-11-24T22:57:52Z").String(),
		"v0.1.0 (a27db40, 2026-11-24T22:57:52Z)"; got != want {
		t.Errorf("%q; want %q", got, want)
	}
	if got := Linked("", "x", "y"); got != Read() {
		t.Errorf("%v; want what Go knows, %v", got, Read())
	}
}
