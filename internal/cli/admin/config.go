package admin

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/tranchehq/tranche/gather/strictyaml"
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

const maxConfig = 1 << 20

// file gives the flags of serve values from a YAML file of flag names. The command line wins over the
// environment, and that over the file.
type file struct{ settings map[string]strictyaml.Value }

// Read implements kong.ConfigurationLoader.
func Read(r io.Reader) (kong.Resolver, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxConfig+1))
	if err != nil {
		return nil, fmt.Errorf("read the config file: %w", err)
	}
	name := ""
	if file, ok := r.(*os.File); ok {
		name = file.Name()
	}
	doc, err := strictyaml.OpenSecret("config file", name, text, maxConfig) // the URL of a database holds a password
	if err != nil {
		return nil, err
	}
	config := &file{settings: map[string]strictyaml.Value{}}
	return config, doc.Root.Entries("settings, like listen: 127.0.0.1:8480", config.add)
}

func (c *file) add(name string, v strictyaml.Value) error {
	name = strings.ReplaceAll(name, "_", "-")
	if _, ok := oneValue(v); !ok {
		return v.Wrong("one value")
	}
	if _, twice := c.settings[name]; twice {
		return v.Fail("%s stands twice", name)
	}
	c.settings[name] = v
	return nil
}

func oneValue(v strictyaml.Value) (text string, ok bool) {
	if text, ok = v.Block(); ok {
		return text, true
	}
	return v.Plain()
}

// Validate refuses names that serve has no flag for.
func (c *file) Validate(app *kong.Application) error {
	var known []string
	for _, flag := range serveFlags(app) {
		known = append(known, flag.Name)
	}
	slices.Sort(known)
	for name, v := range c.settings {
		if !slices.Contains(known, name) {
			return v.Fail("there is no such setting; the settings are %s", strings.Join(known, ", "))
		}
	}
	return nil
}

// Resolve implements kong.Resolver.
func (c *file) Resolve(_ *kong.Context, parent *kong.Path, flag *kong.Flag) (any, error) {
	v, ok := c.settings[flag.Name]
	if !ok || parent.Command == nil || parent.Command.Name != "serve" {
		return nil, nil //nolint:nilnil // kong's way to say that there is no value
	}
	for _, env := range flag.Envs {
		if _, set := os.LookupEnv(env); set {
			return nil, nil //nolint:nilnil // the environment wins
		}
	}
	text, _ := oneValue(v)
	return text, nil
}
