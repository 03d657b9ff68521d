package admin

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"

	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/buildinfo"
	"github.com/tranchehq/tranche/internal/cli"
)

type schemaCommand struct {
	Kind string `arg:"" enum:"plan,schedule,collector,alert,connections" help:"${enum}."`
}

func (s *schemaCommand) Run(term *cli.Console) error {
	return term.Document(api.Schemas()[s.Kind])
}

type manPages struct {
	Dir string `arg:"" help:"Directory to write to, like /usr/local/share/man/man1."`
}

func (m *manPages) Run(line *kong.Context, term *cli.Console, built buildinfo.Info) error {
	if err := os.MkdirAll(m.Dir, 0o755); err != nil { //nolint:gosec // for everybody
		return fmt.Errorf("man pages: %w", err)
	}
	pages := []*kong.Node{line.Model.Node}
	for _, child := range line.Model.Children {
		if !child.Hidden {
			pages = append(pages, child)
		}
	}
	for _, node := range pages {
		file := filepath.Join(m.Dir, pageName(node)+".1")
		text := []byte(page(line.Model, node, built))
		if err := os.WriteFile(file, text, 0o644); err != nil { //nolint:gosec // for everybody
			return fmt.Errorf("man pages: %w", err)
		}
	}
	term.Note("%d pages are in %s; read one with: man -l %s", len(pages), m.Dir, filepath.Join(m.Dir, "tranche.1"))
	return nil
}

func pageName(n *kong.Node) string { return strings.ReplaceAll(n.FullPath(), " ", "-") }

// page formats a command's manual page with man(7) macros. It includes subcommands; the top page only lists them.
func page(app *kong.Application, n *kong.Node, built buildinfo.Info) string {
	var b strings.Builder
	title := strings.ToUpper(pageName(n))
	fmt.Fprintf(&b, ".TH %s 1 \"%s\" \"tranche %s\" \"Tranche\"\n", roff(title), built.Date, roff(built.Version))
	what := lowerFirst(strings.TrimSuffix(n.Help, "."))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n.SH SYNOPSIS\n", roff(pageName(n)), roff(what))
	if n.Type == kong.ApplicationNode {
		fmt.Fprintf(&b, "\\fBtranche\\fR \\fICOMMAND\\fR [\\fIFLAGS\\fR]\n")
		b.WriteString(".SH COMMANDS\n")
		for _, child := range app.Children {
			if !child.Hidden {
				fmt.Fprintf(&b, ".TP\n\\fB%s\\fR(1)\n%s\n", roff(pageName(child)), roff(child.Help))
			}
		}
		manFlags(&b, "FLAGS OF ALL COMMANDS", n.Flags)
		b.WriteString(".SH EXIT STATUS\n0: all went well; 3: completed, items failed, or something is critical; 4: held; " +
			"5: timed out; 6: no server answers; 7: refused; 8: cancelled; 130: interrupted; 2: wrong usage; " +
			"1: any other error.\n")
		return b.String()
	}
	leaves := n.Leaves(true)
	if len(n.Children) == 0 {
		leaves = []*kong.Node{n}
	}
	for _, leaf := range leaves {
		fmt.Fprintf(&b, "%s\n.br\n", roff(leaf.Summary()))
	}
	for _, leaf := range leaves {
		fmt.Fprintf(&b, ".SH %s\n%s\n", roff(strings.ToUpper(leaf.Path())), roff(leaf.Help))
		if leaf.Detail != "" {
			fmt.Fprintf(&b, ".PP\n%s\n", roff(leaf.Detail))
		}
		for _, arg := range leaf.Positional {
			fmt.Fprintf(&b, ".TP\n%s\n%s\n", roff(arg.Summary()), roff(arg.Help))
		}
		manFlags(&b, "", leaf.Flags)
	}
	b.WriteString(".SH SEE ALSO\n\\fBtranche\\fR(1), with the flags that all commands have.\n")
	return b.String()
}

func manFlags(b *strings.Builder, heading string, flags []*kong.Flag) {
	if heading != "" {
		b.WriteString(".SH " + heading + "\n")
	}
	for _, flag := range flags {
		if flag.Hidden {
			continue
		}
		fmt.Fprintf(b, ".TP\n\\fB%s\\fR\n%s\n", roff(flag.String()), roff(flag.Help))
		if len(flag.Envs) > 0 {
			fmt.Fprintf(b, "Or in the environment: \\fB%s\\fR\n", roff(strings.Join(flag.Envs, ", ")))
		}
	}
}

func lowerFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n\n", "\n.PP\n").Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "'") || strings.HasPrefix(line, ".") && line != ".PP" {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

type helpCommand struct {
	Command []string `arg:"" optional:"" help:"The command."`
}

// Args makes help COMMAND the same as COMMAND --help.
func Args(args []string) []string {
	if len(args) == 0 || args[0] != "help" {
		return args
	}
	return append(args[1:len(args):len(args)], "--help")
}

type completion struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish: source <(tranche completion bash)"`
}

func (c *completion) Run(line *kong.Context) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	to, exit := line.Stdout, line.Exit
	var script bytes.Buffer
	line.Stdout, line.Exit = &script, func(int) {}
	err = (&kongcompletion.Completion{Shell: c.Shell, Code: true}).Run(line)
	line.Stdout, line.Exit = to, exit
	if err == nil { // a package's script runs on other machines than its builder's
		_, err = io.WriteString(to, strings.ReplaceAll(script.String(), program, line.Model.Name))
	}
	return err
}

type configSample struct{}

func (configSample) Run(line *kong.Context, term *cli.Console) error {
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
		value := cmp.Or(flag.Default, flag.PlaceHolder)
		if flag.IsBool() {
			value = "true"
		}
		fmt.Fprintf(&b, "\n#%s: %s\n", flag.Name, value)
	}
	return term.Printf("%s", b.String())
}

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

// file reads flags of serve from a YAML file of flag names. The command line overrides the environment, which
// overrides the file.
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
	doc, err := strictyaml.OpenSecret("config file", name, text, maxConfig) // a database URL holds a password
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
		return v.Fail("%s appears twice", name)
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
