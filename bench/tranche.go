package main

import (
	"context"
	"errors"
)

// tranche measures the real binary from outside.
type tranche struct {
	cfg   config
	pg    *cluster
	input items
}

func newTranche(cfg config, pg *cluster, input items) *tranche { return &tranche{cfg, pg, input} }

func (t *tranche) name() string { return "tranche" }
func (t *tranche) size() int    { return t.input.n }

func (t *tranche) measure(context.Context) (sample, error) {
	return sample{}, errors.New("the node's API is not there yet")
}

func isEcho(args []string) bool { return false }

func runEcho([]string) error { return nil }

type latency struct{}

func measureLatency(context.Context, config, *cluster) (*latency, error) { return nil, nil }
