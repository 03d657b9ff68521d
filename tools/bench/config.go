package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// config is what the flags say.
type config struct {
	items       int
	riverItems  int
	singles     int
	rounds      int
	manyRuns    int
	manyLarge   int
	manyWaiting int
	nodes       []int
	only        []string
	database    string
	binary      string
	keys        string
	dir         string
	format      string
	write       string
	bed         string // in the name of its database
	oldRuns     []int
}

var parts = []string{
	"floor", "floor-raw", "tranche", "flow", "floor-gather", "gather", "river", "latency", "holes", "adaptive", "fair",
	"misbehave",
	"many",
}

// asked are the parts that run only when they are named: they want much room on the disk.
var asked = []string{"old"}

func (c config) wants(part string) bool { return slices.Contains(c.only, part) }

func parseFlags(args []string, stderr io.Writer) (config, error) {
	var c config
	var only, nodes, olds string
	var asJSON, asMarkdown bool
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.IntVar(&c.items, "items", 1_000_000, "items of one round of the floor, of tranche and of flow")
	f.IntVar(&c.riverItems, "river-items", 50_000, "jobs of one round of River")
	f.IntVar(&c.singles, "singles", 200, "runs of one item that the latency part starts")
	f.IntVar(&c.rounds, "rounds", 3, "how often each contestant is measured")
	f.IntVar(&c.manyRuns, "many-runs", 10_000, "runs of 10 items of the part many")
	f.IntVar(&c.manyLarge, "many-large", 5_000_000, "items of the run beside them")
	f.IntVar(&c.manyWaiting, "many-waiting", 10_000, "runs that then wait for endpoints that nobody serves")
	f.StringVar(&nodes, "many-nodes", "1,2,4", "with how many nodes the part many is measured")
	f.StringVar(&olds, "old-runs", "1,3,10,30", "how many finished runs of -items lie there when the part old measures")
	f.StringVar(&only, "only", strings.Join(parts, ","), "which parts to run; old, too, can be named")
	f.StringVar(&c.database, "database", "", "URL of a cluster to use instead of a private one; databases named "+
		"tranche_bench_* are made in it and dropped")
	f.StringVar(&c.binary, "binary", "../../bin/tranche", "the tranche program to measure")
	f.StringVar(&c.keys, "keys", "ordered", "order of the items' keys in the input: ordered or random")
	f.StringVar(&c.dir, "dir", "", "where the private cluster and the nodes keep their data; empty means one "+
		"under /var/tmp, removed at the end")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.BoolVar(&asMarkdown, "markdown", false, "print the tables of docs/benchmarks.md")
	f.StringVar(&c.write, "write", "", "a Markdown page to put the tables into, such as ../../docs/benchmarks.md")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	if f.NArg() > 0 {
		return c, fmt.Errorf("%q is not a flag; see -help", f.Arg(0))
	}
	if asJSON && asMarkdown {
		return c, errors.New("give -json or -markdown, not both")
	}
	c.only = strings.Split(only, ",")
	for _, list := range []struct {
		flag, text string
		into       *[]int
	}{{"-many-nodes", nodes, &c.nodes}, {"-old-runs", olds, &c.oldRuns}} {
		for _, n := range strings.Split(list.text, ",") {
			count, err := strconv.Atoi(n)
			if err != nil || count < 1 {
				return c, fmt.Errorf("%s is %q; give numbers such as 1,2,4", list.flag, list.text)
			}
			*list.into = append(*list.into, count)
		}
	}
	c.format = chooseFormat(asJSON, asMarkdown)
	return c, c.validate()
}

func chooseFormat(asJSON, asMarkdown bool) string {
	switch {
	case asJSON:
		return formatJSON
	case asMarkdown:
		return formatMarkdown
	default:
		return formatText
	}
}

func (c config) validate() error {
	for _, p := range c.only {
		if !slices.Contains(parts, p) && !slices.Contains(asked, p) {
			return fmt.Errorf("-only: there is no part %q; the parts are %s", p,
				strings.Join(slices.Concat(parts, asked), ", "))
		}
	}
	switch {
	case c.items < 1 || c.riverItems < 1 || c.rounds < 1 || c.singles < 1:
		return errors.New("-items, -river-items, -rounds and -singles must be at least 1")
	case c.manyRuns < 1 || c.manyLarge < 1 || c.manyWaiting < 0:
		return errors.New("-many-runs and -many-large must be at least 1, -many-waiting 0")
	case c.write != "" && len(c.only) != len(parts):
		return errors.New("-write is for a run of all parts; leave out -only")
	case c.keys != "ordered" && c.keys != "random":
		return fmt.Errorf("-keys is %q; it is ordered or random", c.keys)
	}
	return nil
}
