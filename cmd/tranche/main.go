// Command tranche runs one job over a very large set of items, and starts, watches and repairs such runs.
//
// tranche serve is the whole system in one process. Every other command is a client of its HTTP API, unless it names a
// database, a plan file or a service to work with itself. This package has serve's flags and wiring; the other commands
// are in internal/cli.
//
// Exit codes: 0 for success, including a watched run without failed items; 1 for any other error; 2 for an invalid
// command line; 3 when the run has failed items, or tranche health finds something critical; 4 when the run is held
// or waits for an approval (--on-hold), or another administrator must confirm an act (--four-eyes); 5 when it did not
// end within --max-wait; 6 when the server does not answer or is not ready; 7 when it refuses; 8 when the run was
// cancelled; 130 when Ctrl-C ended the wait.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"
	// The certificates of authorities, for where the system has none: an image with nothing in it but this program.
	_ "golang.org/x/crypto/x509roots/fallback"

	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/buildinfo"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/cli/admin"
	"github.com/tranchehq/tranche/internal/cli/runs"
	"github.com/tranchehq/tranche/internal/startup"
	"github.com/tranchehq/tranche/orchestrator/client"
)

type commands struct {
	URL            string        `group:"Global flags:" default:"${url}" env:"TRANCHE_URL" help:"The server to call; of several, with commas, the first that answers." placeholder:"URL"`
	CA             string        `group:"Global flags:" name:"ca" env:"TRANCHE_CA" help:"A PEM file of authorities to trust, in addition to the system's." placeholder:"FILE"`
	Cert           string        `group:"Global flags:" env:"TRANCHE_CERT" help:"A client certificate to present, in PEM; it can replace a token." placeholder:"FILE"`
	KeyFile        string        `group:"Global flags:" env:"TRANCHE_KEY" help:"The key of --cert." placeholder:"FILE"`
	Timeout        time.Duration `group:"Global flags:" within:"0s," env:"TRANCHE_TIMEOUT" help:"How long the server may be silent (1m, 3m for changes, 11m for doctor)." placeholder:"TIME"`
	Namespace      string        `group:"Global flags:" env:"TRANCHE_NAMESPACE" help:"Act in this namespace; by default in all that the token allows, and in default." placeholder:"NAME"`
	JSON           bool          `group:"Global flags:" name:"json" help:"Print JSON and nothing else on standard output."`
	cli.TokenFlags `group:"Global flags:"`

	Serve   serveCommand   `cmd:"" help:"Run everything: node, API, and PostgreSQL and NATS unless they are given."`
	Dev     devCommand     `cmd:"" help:"Serve, open the dashboard, and restart a service when its files change."`
	Run     runs.Commands  `cmd:"" help:"Start, watch, repair and export runs."`
	Version versionCommand `cmd:"" help:"Print the version."`
	admin.Commands

	VersionFlag kong.VersionFlag `group:"Global flags:" name:"version" help:"Print the version."`
}

func main() {
	os.Exit(run(untilSignal(), os.Args[1:], cli.NewConsole(os.Stdin, os.Stdout, os.Stderr)))
}

// untilSignal returns a context that ends with the first signal to stop; the second one ends the process. SIGHUP
// counts only at a terminal, which has then been closed; see [serveCommand.Run].
func untilSignal() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	came := make(chan os.Signal, 1)
	signal.Notify(came, os.Interrupt, syscall.SIGTERM)
	if cli.IsTerminal(os.Stdin) && !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(came, syscall.SIGHUP)
	}
	go func() {
		<-came
		signal.Stop(came)
		cancel()
	}()
	return ctx
}

func run(ctx context.Context, args []string, term *cli.Console) int {
	var line commands
	parser, err := kong.New(&line,
		kong.Name("tranche"),
		kong.Description("Run one job over a very large set of items, in chunks, on NATS and PostgreSQL."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true}),
		kong.Configuration(admin.Read), kong.Vars{"url": client.DefaultURL, "listen": api.DefaultListen,
			"version": "tranche " + versionText()},
		kong.Writers(term.Out, term.Err), kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(build()), kong.BindToProvider((*cli.Console).Client), cli.PastTimes(), cli.Limits(),
	)
	if err == nil {
		err = runs.SayHelp(parser.Model)
	}
	if err != nil {
		return term.Fail(fmt.Errorf("command line: %w", err))
	}
	kongcompletion.Register(parser)
	term.JSON = slices.Contains(args, "--json") // for errors in the command line itself
	if err := cli.RefuseBytes(args); err != nil {
		return term.Fail(err)
	}
	args = admin.Args(args)
	chosen, err := parser.Parse(args)
	if err != nil {
		text := strings.Replace(err.Error(), `must be one of "",`, "must be one of ", 1) // "" means: not given
		// The command that was meant, as far as the line could be parsed.
		node := parser.Model.Node
		if bad, ok := errors.AsType[*kong.ParseError](err); ok && bad.Context != nil && bad.Context.Selected() != nil {
			node = bad.Context.Selected()
		}
		return term.Fail(cli.Usage(text + meantFlags(node, err) + "; see: " + node.FullPath() + " --help"))
	}
	if err := cli.CheckValues(chosen); err != nil {
		return term.Fail(err)
	}
	term.URL, term.CA, term.Timeout, term.JSON, term.Token = line.URL, line.CA, line.Timeout, line.JSON, line.TokenFlags
	term.Namespace, term.Cert, term.KeyFile = line.Namespace, line.Cert, line.KeyFile
	return term.Fail(startup.DatabaseRemedy(chosen.Run(term)))
}

// meantFlags suggests flags for an unknown one, where the parser suggests none.
func meantFlags(node *kong.Node, err error) string {
	name, unknown := strings.CutPrefix(err.Error(), "unknown flag --")
	if !unknown || strings.ContainsRune(name, ' ') {
		return ""
	}
	var known []string
	for _, f := range slices.Concat(node.AllFlags(true)...) {
		known = append(known, f.Name)
	}
	near := strictyaml.Nearest(name, known)
	if len(near) == 0 {
		return ""
	}
	return `, did you mean "--` + strings.Join(near, `" or "--`) + `"?`
}

// Set by the linker with -X, for a release or by make build.
var version, commit, date string //nolint:gochecknoglobals // the linker sets nothing else

type versionCommand struct{}

func (versionCommand) Run(term *cli.Console) error {
	if term.JSON {
		return term.Document(build())
	}
	return term.Printf("tranche %s\n", versionText())
}

func build() buildinfo.Info { return buildinfo.Linked(version, commit, date) }

func versionText() string { return build().String() }
