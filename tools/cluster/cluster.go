package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/term"

	"github.com/tranchehq/tranche/tools/demokit"
)

const (
	exitOK = 0

	ledgers   = "ledgers"
	itemsFile = "accounts.csv"
	planFile  = "year-end.yaml"
)

type cluster struct {
	settings settings
	story    *demokit.Story
	shell    *demokit.Shell
	dir      *demokit.Dir
	deploy   page
	net      string // prefix of the machines' addresses, with the last dot
	password string // of both roles

	nats     [machines]*natsServer
	db       databases
	nodes    [machines]*node
	services []*instance

	progress progress
	faults   []fault
	checks   []demokit.Check
	lost     int64 // items without a correct result, in the step with most
	began    time.Time
}

// show starts everything, injects the faults and checks the run. When ctx ends it stops everything.
func show(ctx context.Context, s settings) error {
	color := term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("NO_COLOR") == ""
	c := &cluster{
		settings: s, story: demokit.New(os.Stdout, color), began: time.Now(), password: rand.Text(),
		net: fmt.Sprintf("127.%d.%d.", 10+mathrand.IntN(240), mathrand.IntN(250)),
	}
	c.progress.all = 2 * int64(s.items)
	return c.story.Tell(ctx,
		c.open, c.startServers, c.startTranche, c.look, c.startRun,
		c.killNATS, c.killPrimary, c.killNode, c.killService, c.upgrade,
		c.removeLimits, c.prove, c.table,
	)
}

func (c *cluster) open(context.Context) (err error) {
	if c.deploy, err = readPage(c.settings.repository, "docs", "operate", "deploy.md"); err != nil {
		return err
	}
	c.dir, err = demokit.OpenDir(c.settings.dir, "cluster", c.began, ledgers, itemsFile, planFile,
		stepInterest+".ndjson", stepLetter+".ndjson")
	if err != nil {
		return err
	}
	c.story.OnStop(func(context.Context) error { return c.dir.Close() })
	// PostgreSQL may run as another user, which needs access.
	err = errors.Join(os.Mkdir(c.dir.File(ledgers), 0o700), os.Mkdir(c.dir.Servers(), 0o711)) //nolint:gosec // see above
	if err != nil {
		return fmt.Errorf("make the working directory: %w", err)
	}
	c.shell = &demokit.Shell{
		Program: c.settings.tranche, Dir: c.dir.Path, Env: demokit.Environment(), Out: os.Stdout, Err: os.Stderr,
		Story: c.story,
	}
	c.story.Title("Tranche on three machines, which fail one at a time")
	c.story.Say("The machines are %s1 to %s%d; everything follows docs/operate/deploy.md.", c.net, c.net, machines)
	return nil
}

func (c *cluster) startServers(ctx context.Context) error {
	c.story.Chapter("Three NATS servers, with an account for each service; PostgreSQL with a synchronous standby")
	began := time.Now()
	c.configureNATS(ctx)
	for _, s := range c.nats {
		demokit.Stop(c.startServer(ctx, s))
	}
	for _, s := range c.nats {
		demokit.Stop(s.awaitHealthy(ctx))
	}
	c.story.Fact("three NATS servers", time.Since(began), 0)
	began = time.Now()
	demokit.Stop(c.startPostgres(ctx))
	c.story.Fact("PostgreSQL and its standby, the schema, two roles", time.Since(began), 0)
	return nil
}

func (c *cluster) startTranche(ctx context.Context) error {
	c.story.Chapter("Three nodes, and two instances of each of two services")
	c.configureNodes()
	c.configureServices()
	began := time.Now()
	for _, n := range c.nodes {
		c.story.Command("systemctl enable --now tranche     # " + n.name)
		demokit.Stop(c.startNode(ctx, n, c.settings.tranche))
		c.story.Fact(fmt.Sprintf("pid %d, %s", n.PID(), n.url), time.Since(began), 0)
	}
	demokit.Stop(c.makeToken(ctx))
	for _, i := range c.services {
		demokit.Stop(c.startInstance(ctx, i, firstVersion))
		demokit.Stop(c.listens(ctx, i, firstVersion))
	}
	return nil
}

func (c *cluster) look(ctx context.Context) error {
	block := demokit.Must(c.deploy.block("export TRANCHE_URL"))
	for _, words := range commands(block) {
		if words[0] == "export" {
			continue // done already
		}
		demokit.Stop(c.shell.Typed(ctx, exitOK, words[1:]...))
	}
	return nil
}

// planText keeps more requests in flight than one instance can hold, so that a dead one had only part of them.
const planText = `name: year-end
steps:
- {name: %s, endpoint: year-end-interest, chunk: %d, rate: %d, in_flight: 16}
- {name: %s, endpoint: letter, needs: [%s], chunk: %d, rate: %d, in_flight: 16}
`

func (c *cluster) startRun(ctx context.Context) error {
	c.story.Chapter(fmt.Sprintf("A run of %s accounts in two steps, at %d a second during the faults",
		demokit.Grouped(int64(c.settings.items)), c.settings.rate()))
	c.writeItems(itemsFile)
	plan := fmt.Sprintf(planText, stepInterest, c.settings.chunk(), c.settings.rate(), stepLetter, stepInterest,
		c.settings.chunk(), c.settings.rate())
	demokit.Stop(os.WriteFile(c.dir.File(planFile), []byte(plan), 0o600))
	demokit.Stop(c.story.File(c.dir.File(planFile)))
	demokit.Stop(c.shell.Typed(ctx, exitOK, "run", "start", planFile, "--items", itemsFile))
	watching, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.progress.watch(watching, c.db.url)
	}()
	c.story.OnStop(func(context.Context) error {
		cancel()
		<-ended
		return nil
	})
	return nil
}

// removeLimits removes the run's limits and waits for its end.
func (c *cluster) removeLimits(ctx context.Context) error {
	c.story.Chapter("No more faults: the rest, at full speed")
	began := time.Now()
	before, _ := c.progress.now()
	for _, step := range []string{stepInterest, stepLetter} {
		demokit.Stop(c.shell.Typed(ctx, exitOK, "run", "set", "last", "--step", step, "--rate", "0", "--chunk", "500",
			"--in-flight", "auto"))
	}
	demokit.Stop(c.shell.Typed(ctx, exitOK, "run", "watch", "last"))
	rest := c.progress.all - before
	c.story.Fact(demokit.Grouped(rest)+" outcomes, of both steps", time.Since(began), int(rest))
	return nil
}

func (c *cluster) prove(ctx context.Context) error {
	c.story.Chapter("Every item, compared with what the services recorded before they answered")
	for _, step := range []struct{ name, service string }{{stepInterest, interestService}, {stepLetter, lettersService}} {
		demokit.Stop(c.checkStep(ctx, step.name, step.service))
	}
	demokit.Stop(c.shell.Typed(ctx, exitOK, "doctor"))
	return c.size(ctx)
}

func (c *cluster) size(ctx context.Context) error {
	conn := demokit.Must(pgx.Connect(ctx, c.db.primary.URL()))
	defer func() { _ = conn.Close(ctx) }()
	var bytes, connections int64
	if err := conn.QueryRow(ctx, sizes).Scan(&bytes, &connections); err != nil {
		return fmt.Errorf("read sizes: %w", err)
	}
	c.story.Say("PostgreSQL keeps %d bytes for each item, of two steps, and has %d connections of three nodes.",
		bytes/int64(c.settings.items), connections)
	return nil
}

const sizes = `SELECT
	(SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'work%')::bigint,
	(SELECT count(*) FROM pg_stat_activity WHERE usename = 'tranche_app')`

func (c *cluster) table(context.Context) error {
	c.story.Chapter("What it cost")
	c.story.Say("%-38s %18s %16s", "what happened", "outcomes before", "was stalled")
	for _, f := range c.faults {
		c.story.Say("%-38s %18s %14.1f s", f.what, demokit.Grouped(f.done), f.standstill.Seconds())
	}
	c.story.Say("%-38s %18s %16d", "items lost", "", c.lost)
	c.story.Say("\nAll of it took %.0f s. Logs and ledgers are in\n  %s", time.Since(c.began).Seconds(), c.dir.Path)
	return demokit.Verdict("the results differ from the ledgers in "+c.dir.Path, c.checks)
}

const (
	pageNet     = "10.0.0."
	pageMachine = "10.0.0.1" // the machine of its examples
	pageName    = "nats-1"
)

var (
	fenced  = regexp.MustCompile("(?ms)^```[a-z]*\n(.*?)\n```$")
	word    = regexp.MustCompile(`'[^']*'|\S+`)
	comment = regexp.MustCompile(`\s+#.*`)
	keyFile = regexp.MustCompile(`/etc/\w+/(\w+\.nk)`)
)

type page struct{ name, text string }

func readPage(repository string, path ...string) (page, error) {
	name := filepath.Join(path...)
	text, err := os.ReadFile(filepath.Join(repository, name))
	if err != nil {
		return page{}, fmt.Errorf("read the page: %w", err)
	}
	return page{name, string(text)}, nil
}

// block returns the only code block that starts with begin.
func (p page) block(begin string) (string, error) {
	var found []string
	for _, match := range fenced.FindAllStringSubmatch(p.text, -1) {
		if strings.HasPrefix(match[1], begin) {
			found = append(found, match[1])
		}
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%s has %d blocks that begin with %q, not one", p.name, len(found), begin)
	}
	return found[0], nil
}

func commands(block string) (all [][]string) {
	for line := range strings.Lines(block) {
		words := word.FindAllString(comment.ReplaceAllString(line, ""), -1)
		for i, w := range words {
			words[i] = strings.Trim(w, "'")
		}
		if len(words) > 0 {
			all = append(all, words)
		}
	}
	return all
}

// place replaces the page's addresses, paths and passwords by this cluster's.
func (c *cluster) place(text string) string {
	text = strings.NewReplacer(pageNet, c.net, "tranche_owner:OWNER", "tranche_owner:"+c.password,
		"tranche_app:APP", "tranche_app:"+c.password).Replace(text)
	return keyFile.ReplaceAllString(text, c.dir.Servers("nats", "$1"))
}

// own returns a machine's copy of a file: its name and address are replaced, except in lists of all machines.
func (c *cluster) own(text string, machine int) string {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.Count(line, pageNet) <= 1 {
			line = strings.ReplaceAll(line, pageMachine, fmt.Sprint(pageNet, machine))
			line = strings.ReplaceAll(line, pageName, fmt.Sprint("nats-", machine))
		}
		lines = append(lines, line)
	}
	return c.place(strings.Join(lines, ""))
}

func environment(file string) (env []string) {
	for line := range strings.Lines(file) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			env = append(env, strings.ReplaceAll(line, "'", "")) // systemd removes the quotes
		}
	}
	return env
}
