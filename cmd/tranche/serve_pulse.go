package main

import (
	"fmt"
	"time"

	"github.com/tranchehq/tranche/orchestrator"
)

// pulseFlags say how often a node gives a sign of life, when it counts as dead without one, and how often it looks for
// work that nothing told it of.
type pulseFlags struct {
	Heartbeat  time.Duration `env:"TRANCHE_HEARTBEAT" default:"1s" help:"Between two signs of life of the node (${default}): 100ms to 20s, and a third of --session-ttl at the most." placeholder:"TIME"`
	SessionTTL time.Duration `name:"session-ttl" env:"TRANCHE_SESSION_TTL" default:"5s" help:"When a node without a sign of life counts as dead, and its work is given to others (${default}): 1s to 1m." placeholder:"TIME"`
	Poll       time.Duration `env:"TRANCHE_POLL" default:"500ms" help:"Between two looks for work that no event told of (${default}): 50ms to 30s." placeholder:"TIME"`
}

func (f *pulseFlags) validatePulse() error {
	for _, flag := range []struct {
		name             string
		value, low, high time.Duration
	}{
		{"heartbeat", f.Heartbeat, 100 * time.Millisecond, 20 * time.Second},
		{"session-ttl", f.SessionTTL, time.Second, time.Minute},
		{"poll", f.Poll, 50 * time.Millisecond, 30 * time.Second},
	} {
		if flag.value < flag.low || flag.value > flag.high {
			return fmt.Errorf("--%s is %s; it must lie between %s and %s", flag.name, flag.value, flag.low, flag.high)
		}
	}
	if 3*f.Heartbeat > f.SessionTTL {
		return fmt.Errorf("--heartbeat is %s; it must be a third of --session-ttl (%s) at the most", f.Heartbeat,
			f.SessionTTL)
	}
	return nil
}

func (f *pulseFlags) set(c orchestrator.Config) orchestrator.Config {
	c.Heartbeat, c.SessionTTL, c.Poll = f.Heartbeat, f.SessionTTL, f.Poll
	return c
}
