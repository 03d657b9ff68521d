// Command tranche runs one job for very many entities, and is the tool to start, watch and repair such runs.
//
// tranche serve is the whole system in one process; every other command is a client of its HTTP API, but for migrate,
// doctor with --database, demo and version. It holds the wiring, the flags and what people read; what runs do is
// decided in the packages below.
//
// Exit codes: 0 when all went well, and a run that was waited for has no failed item; 3 when it has, and when tranche
// health finds something critical; 2 for a command line that cannot be understood; 1 for everything else.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// commands is the command line.
type commands struct {
	URL     string        `default:"${url}" env:"TRANCHE_URL" help:"The server to talk to." placeholder:"URL"`
	Timeout time.Duration `env:"TRANCHE_TIMEOUT" help:"How long the server may be silent (1m, 3m for changes, 11m for doctor)." placeholder:"TIME"`
	JSON    bool          `name:"json" help:"Print JSON and nothing else on standard output."`
	tokenFlags

	Serve       serveCommand       `cmd:"" help:"Run everything: node, API, and PostgreSQL and NATS unless they are given."`
	Run         runCommands        `cmd:"" help:"Start, watch, repair and export runs."`
	Plan        planCommands       `cmd:"" help:"Plans on record, in versions: what runs do, by name."`
	Schedule    scheduleCommands   `cmd:"" help:"Schedules: what is started by the clock, and what became of it."`
	Alert       alertCommands      `cmd:"" help:"Alerts: who is told what a person must see to."`
	Collector   collectorCommands  `cmd:"" help:"Collectors: operations that wait for each other, and are flushed together."`
	Endpoints   endpointCommands   `cmd:"" help:"Who listens on which endpoint, and what there is to do for them."`
	Tracker     trackerCommands    `cmd:"" help:"Tracker batches: when all items of a fan-out are done."`
	DLQ         dlqCommands        `cmd:"" name:"dlq" help:"Dead letters: requests that no service could deal with."`
	Quarantine  quarantineCommands `cmd:"" help:"Messages that could not be taken."`
	Token       tokenCommands      `cmd:"" help:"Tokens: who may use the API, the command line and the dashboard."`
	Session     sessionCommands    `cmd:"" help:"Sessions: who is logged in to the dashboard."`
	Retention   retentionCommands  `cmd:"" help:"For how long what is kept: runs, events, the audit log and more."`
	Streams     streamCommands     `cmd:"" help:"The JetStream streams: their replicas and room, for all nodes, and what they have."`
	Nodes       nodesCommand       `cmd:"" help:"Nodes: who leads, and what each holds."`
	Health      healthCommands     `cmd:"" help:"What a person must do, and what helps; exit 3 when something is critical."`
	Audit       auditCommand       `cmd:"" help:"What operators did: who, what, when, before and after."`
	NATS        natsCommands       `cmd:"" name:"nats" help:"What a NATS server has to know of who takes part."`
	Migrate     migrateCommand     `cmd:"" help:"Bring a database to this version's schema."`
	Conformance conformanceCommand `cmd:"" help:"Check a service, of any language, against docs/protocol.md."`
	Doctor      doctorCommand      `cmd:"" help:"Check the invariants of a database; exit 1 when one does not hold."`
	Version     versionCommand     `cmd:"" help:"Print the version."`
	extras
}

func main() {
	os.Exit(run(untilSignal(), os.Args[1:], newConsole(os.Stdin, os.Stdout, os.Stderr)))
}

// untilSignal returns a context that ends with the first signal that asks the process to end. By then a second one
// finds the default handling, which ends the process at once: who sees the stop begin can cut it short.
func untilSignal() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	came := make(chan os.Signal, 1)
	signal.Notify(came, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-came
		signal.Stop(came)
		cancel()
	}()
	return ctx
}

func run(ctx context.Context, args []string, term *console) int {
	var cli commands
	parser, err := kong.New(&cli,
		kong.Name("tranche"), kong.Description("One job for very many entities, in chunks, over NATS and PostgreSQL."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Configuration(readConfig), kong.Vars{"url": client.DefaultURL, "listen": api.DefaultListen},
		kong.Writers(term.out, term.err), kong.BindTo(ctx, (*context.Context)(nil)),
	)
	if err == nil {
		err = sayHelp(parser.Model)
	}
	if err != nil {
		return term.fail(fmt.Errorf("command line: %w", err))
	}
	if err := refuseBytes(args); err != nil {
		return term.fail(err)
	}
	chosen, err := parser.Parse(args)
	if err != nil {
		return term.fail(&usageError{err.Error() + "; see: " + helpFor(chosen, err)})
	}
	if err := refuseEmpty(chosen); err != nil {
		return term.fail(err)
	}
	term.url, term.timeout, term.json, term.token = cli.URL, cli.Timeout, cli.JSON, cli.tokenFlags
	return term.fail(chosen.Run(term))
}

// helpFor names the help of the command that was meant.
func helpFor(_ *kong.Context, err error) string {
	line := "tranche"
	var parse *kong.ParseError
	if errors.As(err, &parse) && parse.Context != nil {
		if node := parse.Context.Selected(); node != nil {
			line = node.FullPath()
		}
	}
	return line + " --help"
}
