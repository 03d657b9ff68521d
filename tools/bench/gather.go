package main

import (
	"context"
	"errors"
	"os"
	"strings"
)

// gatherEndpoints answer like the echo, each as a service of its own would.
var gatherEndpoints = []string{"accounts", "transactions", "branches"}

// gatherPlan asks the three for a part of each item, all at once.
const gatherPlan = `name: gather
steps:
- endpoint: accounts
- endpoint: transactions
- endpoint: branches
`

// gather measures [tranche] with a plan of three steps that do not need each other: three parts for each item.
type gather struct {
	cfg   config
	pg    *cluster
	input items
}

func (g *gather) name() string { return "gather" }
func (g *gather) size() int    { return g.input.n }
func (g *gather) setup() string {
	return "as tranche; three endpoints of one service, a part of each for every item"
}

func (g *gather) measure(ctx context.Context) (s sample, err error) {
	b, err := openBed(ctx, g.cfg, g.pg)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.putPlan(ctx, gatherPlan); err != nil {
		return s, err
	}
	of := work{plan: "gather"}
	if _, err := b.complete(ctx, of, items{n: bedWarmItems}); err != nil {
		return s, err
	}
	watch, err := g.pg.startWatch(ctx, processes{
		"node": b.node.pid(), "service": b.service.pid(), "client": os.Getpid(),
	})
	if err != nil {
		return s, err
	}
	peaks := watchPeaks(b.node.pid(), b.storeDir())
	done, err := b.complete(ctx, of, g.input)
	if err != nil {
		peaks.stop()
		return s, err
	}
	s, err = watch.stop(ctx, g.input.n)
	s.Intake = done.loaded.Sub(watch.begun).Seconds()
	s.PeakAnon, s.PeakStore = peaks.stop()
	if err != nil {
		return s, err
	}
	return s, b.checkParts(ctx, done.run, len(gatherEndpoints), g.input.n)
}

// putPlan puts a plan on record.
func (b *bed) putPlan(ctx context.Context, plan string) error {
	_, err := b.command(ctx, strings.NewReader(plan), "plan", "apply", "-")
	return err
}
