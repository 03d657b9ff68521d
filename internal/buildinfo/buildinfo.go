// Package buildinfo returns the version of Tranche in a program: the one set by the linker in a release, else the one
// that Go recorded for the module, whether main module or dependency. It never fails: unknown parts are empty, and
// the version then is "dev".
package buildinfo

import (
	"cmp"
	"runtime/debug"
	"strings"
)

// Module is the path of this module.
const Module = "github.com/tranchehq/tranche"

// Info is the version of a build.
type Info struct {
	Version string `json:"version"`          // like v0.1.0; "dev" if unknown
	Commit  string `json:"commit,omitempty"` // git
	Date    string `json:"date,omitempty"`   // of the commit, RFC 3339, so that builds are reproducible
}

// Read returns what Go recorded about the module.
func Read() Info {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return Info{}.withDefaults()
	}
	return of(info).withDefaults()
}

// Linked returns the linker's values, or else what Go recorded.
func Linked(version, commit, date string) Info {
	if version == "" {
		return Read()
	}
	return Info{Version: version, Commit: commit, Date: date}
}

// String returns the version, followed by commit and date in brackets.
func (i Info) String() string {
	var more []string
	if i.Commit != "" {
		more = append(more, i.Commit[:min(len(i.Commit), shortCommit)])
	}
	if i.Date != "" {
		more = append(more, i.Date)
	}
	if len(more) == 0 {
		return i.Version
	}
	return i.Version + " (" + strings.Join(more, ", ") + ")"
}

const shortCommit = 12

func (i Info) withDefaults() Info {
	i.Version = cmp.Or(i.Version, "dev")
	return i
}

// of returns the module's version. As a dependency it has no commit outside the version.
func of(program *debug.BuildInfo) (i Info) {
	if program.Main.Path != Module {
		for _, dep := range program.Deps {
			if dep.Path == Module {
				i.Version = versionOf(dep)
			}
		}
		return i
	}
	i.Version = versionOf(&program.Main)
	for _, setting := range program.Settings {
		switch setting.Key {
		case "vcs.revision":
			i.Commit = setting.Value
		case "vcs.time":
			i.Date = setting.Value
		}
	}
	return i
}

// versionOf drops Go's version of a working directory.
func versionOf(m *debug.Module) string {
	if m.Version == "(devel)" {
		return ""
	}
	return m.Version
}
