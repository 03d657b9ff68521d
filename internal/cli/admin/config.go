package admin

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/tranchehq/tranche/internal/cli"
)

// Sample prints a config file with every setting of serve, from what its flags say of themselves.
type Sample struct{}

// Run prints it.
func (Sample) Run(line *kong.Context, term *cli.Console) error {
	var b strings.Builder
	b.WriteString("# tranche.yaml: the settings of tranche serve, for --config tranche.yaml. What is commented out\n" +
		"# has its default. A flag wins over its variable, and that over this file.\n")
	for _, flag := range serveFlags(line.Model) {
		if flag.Hidden {
			continue
		}
		help := cli.Prose{Columns: 116}
		help.Paragraph("", flag.Help)
		b.WriteString("\n# " + strings.ReplaceAll(strings.TrimSpace(help.B.String()), "\n", "\n# "))
		for _, env := range flag.Envs {
			b.WriteString("\n# $" + env)
		}
		value := flag.Default
		if value == "" {
			value = flag.PlaceHolder
		}
		if flag.IsBool() {
			value = "true"
		}
		fmt.Fprintf(&b, "\n#%s: %s\n", flag.Name, value)
	}
	return term.Printf("%s", b.String())
}

// serveFlags are the settings that a config file may have.
func serveFlags(app *kong.Application) (flags []*kong.Flag) {
	for _, node := range app.Children {
		if node.Name != "serve" {
			continue
		}
		for _, flag := range node.Flags {
			if flag.Name != "config" {
				flags = append(flags, flag)
			}
		}
	}
	return flags
}
