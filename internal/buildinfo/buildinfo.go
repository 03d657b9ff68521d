// Package buildinfo says which version of Tranche a program has in it: the one that a release was given when it was
// linked, else what Go has written down about the module, be it the program's own or one that it depends on.
//
// It reads the program itself and nothing else, and never fails: what is not known is empty, and the version then is
// "dev".
package buildinfo

import (
	"cmp"
	"runtime/debug"
	"strings"
)

// Module is the path of this module.
const Module = "github.com/tranchehq/tranche"

// Info is what was built.
type Info struct {
	Version string `json:"version"`          // like v0.1.0; "dev" when no one knows
	Commit  string `json:"commit,omitempty"` // of git
	Date    string `json:"date,omitempty"`   // of the commit, RFC 3339, so that the same source makes the same bytes
}

// Read returns what Go knows of the module in this program.
func Read() Info {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return Info{}.withDefaults()
	}
	return of(info).withDefaults()
}

// Linked puts what the linker was told before what Go knows.
func Linked(version, commit, date string) Info {
	if version == "" {
		return Read()
	}
	return Info{Version: version, Commit: commit, Date: date}
}

// String is the version, and behind it in brackets the commit and its date.
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

// shortCommit is as much of a commit as tells it from all others.
const shortCommit = 12

func (i Info) withDefaults() Info {
	i.Version = cmp.Or(i.Version, "dev")
	return i
}

// of reads the module's version. A program of someone else has it among its dependencies, with no commit but in the
// version.
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

// versionOf leaves out what Go calls a module in a working directory.
func versionOf(m *debug.Module) string {
	if m.Version == "(devel)" {
		return ""
	}
	return m.Version
}
