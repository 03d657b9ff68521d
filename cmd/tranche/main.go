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
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// version is set at build time by -ldflags.
var version = ""

// Exit codes.
const (
	exitOK     = 0
	exitOther  = 1
	exitUsage  = 2
	exitFailed = 3
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

type runCommands struct {
	Start   runStart   `cmd:"" help:"Load items and run a plan, or a single endpoint, over them."`
	Open    runOpen    `cmd:"" help:"Open a run that gets items later, by add, until it is sealed."`
	Add     runAdd     `cmd:"" help:"Add items to an open run."`
	Seal    runSeal    `cmd:"" help:"End the adding of items to an open run."`
	List    runList    `cmd:"" help:"List runs, newest first."`
	Show    runShow    `cmd:"" help:"Everything about a run."`
	Watch   runWatch   `cmd:"" help:"Follow a run until it ends."`
	Explain runExplain `cmd:"" help:"Why a run, or an item of it, is not done: whose turn it is, and what comes next."`
	Report  runReport  `cmd:"" help:"The account of a run: counts, times, requests, digests; compared with another."`
	Groups  runGroups  `cmd:"" help:"Items by the value of a field of their payloads."`
	History runHistory `cmd:"" help:"What happened to a run: actions, notes, breakers, deploys, alerts."`
	Note    runNote    `cmd:"" help:"Write a note of a run, for all who look at it."`
	Errors  runErrors  `cmd:"" help:"What failed, in groups by error code and message."`
	Items   runItems   `cmd:"" help:"List items in their order, with where each is."`
	Slices  runSlices  `cmd:"" help:"List requests that are under way, and who holds them."`
	Item    runItem    `cmd:"" help:"One item: its state, result or error, and every attempt."`
	Export  runExport  `cmd:"" help:"Write all items with their outcomes."`
	Rerun   runRerun   `cmd:"" help:"Run items again."`
	Reset   runReset   `cmd:"" help:"Take the parts of a step back, to be made again; what depends on them follows."`
	Accept  runAccept  `cmd:"" help:"Accept failures, with a reason: they stay failed, and the health is quiet about them."`
	Set     runSet     `cmd:"" help:"Change settings of a run while it runs."`
	Pause   runPause   `cmd:"" help:"Send nothing more of a run, or of all runs, until it is resumed."`
	Resume  runResume  `cmd:"" help:"Go on with a paused run, or all of them."`
	Approve runApprove `cmd:"" help:"Let the items go that a canary held back."`
	Cancel  runCancel  `cmd:"" help:"Stop a run, or all runs, for good; what is recorded stays."`
}

type endpointCommands struct {
	List    endpointsList    `cmd:"" default:"1" help:"List endpoints: backlog, rate, time for an item, errors, listeners."`
	Show    endpointsShow    `cmd:"" help:"One endpoint, with each instance that listens on it."`
	Explain endpointsExplain `cmd:"" help:"Why an endpoint does not move."`
	Set     endpointsSet     `cmd:"" help:"Change an endpoint's concurrency, budget or rate while its services run."`
}

type dlqCommands struct {
	List    dlqList    `cmd:"" help:"List dead letters, newest first."`
	Show    dlqShow    `cmd:"" help:"A dead letter: its cause, its headers and its body."`
	Requeue dlqRequeue `cmd:"" help:"Send dead letters to their endpoints again."`
	Drop    dlqDrop    `cmd:"" help:"Give dead letters up; their bodies are deleted."`
}

type quarantineCommands struct {
	List quarantineList `cmd:"" help:"List messages that could not be taken, newest first."`
	Show quarantineShow `cmd:"" help:"A message that could not be taken: why, its headers and its body."`
}

// usageError is a mistake on the command line.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// exitError ends the program with a code and without a message: everything has been said.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit %d", e.code) }

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

// console is the world of a command.
type console struct {
	in       io.Reader
	out, err io.Writer
	columns  int // of the output
	url      string
	timeout  time.Duration // 0: what the operations take
	json     bool
	token    tokenFlags
	answer   []byte // the last that was kept
}

// newConsole returns a console whose output is inert where a person looks at it, whatever the commands print.
func newConsole(in io.Reader, out, err *os.File) *console {
	c := &console{in: in, out: out, err: err, columns: width(out)}
	if isTerminal(out) {
		c.out = &inertWriter{to: out}
	}
	return c
}

// fail says what went wrong, if anything did, and returns the exit code.
func (c *console) fail(err error) int {
	var exit *exitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return exit.code
	case errors.Is(err, context.Canceled):
		c.note("stopped")
		return exitOther
	}
	text := err.Error()
	if _, ok := errors.AsType[*client.SilentError](err); ok {
		text += " with --timeout"
	}
	_, _ = fmt.Fprintln(c.err, "tranche: "+inertText(text)) // nowhere else to say it
	if _, ok := errors.AsType[*usageError](err); ok {
		return exitUsage
	}
	return exitOther
}

// note says something to the person that is no part of the output.
func (c *console) note(format string, args ...any) {
	_, _ = fmt.Fprintln(c.err, "tranche: "+inertText(fmt.Sprintf(format, args...))) // nowhere else to say it
}

func (c *console) client() (*client.Client, error) {
	if c.timeout < 0 {
		return nil, &usageError{fmt.Sprintf("--timeout is %s; it must be positive", c.timeout)}
	}
	secret, err := c.token.secret(c)
	if err != nil {
		return nil, err
	}
	if secret != "" {
		warnOfPlainHTTP(c, c.url)
	}
	cl, err := client.New(c.url, client.WithActor(osUser()), client.WithTimeout(c.timeout),
		client.WithToken(secret))
	if err != nil {
		return nil, &usageError{"--url: " + err.Error()}
	}
	return cl, nil
}

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
