package main

import (
	"github.com/tranchehq/tranche/internal/buildinfo"
	"github.com/tranchehq/tranche/internal/cli"
)

// What the linker is told of a release, and by make build, with -X.
var version, commit, date string //nolint:gochecknoglobals // the linker sets nothing else

type versionCommand struct{}

// Run prints the version.
func (versionCommand) Run(term *cli.Console) error {
	if term.JSON {
		return term.Document(build())
	}
	return term.Printf("tranche %s\n", versionText())
}

// build is what this program was made of.
func build() buildinfo.Info { return buildinfo.Linked(version, commit, date) }

// versionText is it for people: version, commit and date.
func versionText() string { return build().String() }
