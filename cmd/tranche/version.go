package main

import "runtime/debug"

// version is set at build time by -ldflags.
var version = ""

type versionCommand struct{}

// Run prints the version.
func (versionCommand) Run(term *console) error {
	if term.json {
		return term.document(map[string]string{"version": versionText()})
	}
	return term.printf("tranche %s\n", versionText())
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
