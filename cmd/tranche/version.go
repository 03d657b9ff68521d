package main

import (
	"runtime/debug"

	"github.com/tranchehq/tranche/internal/cli"
)

// version is set at build time by -ldflags.
var version = ""

type versionCommand struct{}

// Run prints the version.
func (versionCommand) Run(term *cli.Console) error {
	if term.JSON {
		return term.Document(map[string]string{"version": versionText()})
	}
	return term.Printf("tranche %s\n", versionText())
}

func versionText() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "dev"
}
