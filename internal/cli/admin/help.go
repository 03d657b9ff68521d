package admin

import (
	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"
)

// Help is there to be listed: its line is read as that of the command itself with --help.
type Help struct {
	Command []string `arg:"" optional:"" help:"The command."`
}

// Args makes help COMMAND the same as COMMAND --help.
func Args(args []string) []string {
	if len(args) == 0 || args[0] != "help" {
		return args
	}
	return append(args[1:len(args):len(args)], "--help")
}

// Completion prints what a shell has to read.
type Completion struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish: source <(tranche completion bash)"`
}

// Run prints it.
func (c *Completion) Run(line *kong.Context) error {
	return (&kongcompletion.Completion{Shell: c.Shell, Code: true}).Run(line)
}
