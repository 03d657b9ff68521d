package faultyservice

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// Config says what a service does, beside answering. Each section that is missing is a way in which it behaves well.
type Config struct {
	Endpoint    string        `json:"endpoint"`              // required
	Concurrency int           `json:"concurrency,omitempty"` // chunks at once; 0: the SDK's default
	Timeout     time.Duration `json:"timeout,omitempty"`     // of a chunk; 0: the SDK's default

	Poison   *Poison   `json:"poison,omitempty"`
	Memory   *Memory   `json:"memory,omitempty"`
	Throttle *Throttle `json:"throttle,omitempty"`
	Load     *Load     `json:"load,omitempty"`
	Outage   *Outage   `json:"outage,omitempty"`

	Ledger *Ledger     `json:"-"` // nil: one of its own, which Service.Ledger returns
	Log    *zap.Logger `json:"-"` // nil: none
}

// Way is how a chunk goes wrong.
type Way string

// The ways.
const (
	WayError  Way = "error"  // the handler returns an error: the chunk fails, and may be tried again
	WayRefuse Way = "refuse" // the same, but trying again would not help
	WayPanic  Way = "panic"  // the handler panics
	WayHang   Way = "hang"   // nothing is answered until the handler's time is over
	WayExit   Way = "exit"   // the process ends at once
	WaySlots  Way = "slots"  // each item is an error that may pass
	WayItem   Way = "item"   // poison: only the item itself is an error, for good; otherwise each item is
)

// Poison is items that make every chunk fail that they are in, however small; by WayItem they only fail themselves.
type Poison struct {
	Ordinals []int `json:"ordinals"`
	Way      Way   `json:"way"`
}

// Memory makes chunks fail that are too big, whatever is in them.
type Memory struct {
	Items int `json:"items"` // the most that a chunk may have
	Way   Way `json:"way"`
}

// Throttle refuses the items over a rate, at once, with errors of CodeThrottled that may pass.
type Throttle struct {
	PerSecond float64 `json:"per_second"` // items
	Burst     float64 `json:"burst"`      // items that are let through after a pause; 0: those of a second
}

// Outage is a while in which nothing works. It begins with the first chunk after so many items were answered.
type Outage struct {
	After int           `json:"after"` // items
	For   time.Duration `json:"for"`
	Way   Way           `json:"way"` // WayHang: what was asked in that time is never answered
	// Until has it last until then at the least; nil: it lasts as long as For says.
	Until <-chan struct{} `json:"-"`
}

// Codes of the errors that services here answer with. Others are the SDK's.
const (
	CodeThrottled = "throttled"
	CodeDown      = "down"
	CodePoison    = "poison"
	CodeMemory    = "out_of_memory"
)

func (c *Config) validate() error {
	if err := wire.ValidateName(c.Endpoint); err != nil {
		return fmt.Errorf("faultyservice: Endpoint: %w", err)
	}
	switch {
	case c.Poison != nil && !c.Poison.Way.known():
		return fmt.Errorf("faultyservice: Poison.Way %q is not one of the ways", c.Poison.Way)
	case c.Memory != nil && (!c.Memory.Way.known() || c.Memory.Items < 1):
		return fmt.Errorf("faultyservice: Memory needs a Way and Items of at least 1, not %q and %d", c.Memory.Way,
			c.Memory.Items)
	case c.Throttle != nil && (c.Throttle.PerSecond <= 0 || c.Throttle.Burst < 0):
		return errors.New("faultyservice: Throttle needs a positive PerSecond, and no negative Burst")
	case c.Outage != nil && (!c.Outage.Way.known() || c.Outage.For <= 0):
		return fmt.Errorf("faultyservice: Outage needs a Way and a positive For, not %q and %s", c.Outage.Way, c.Outage.For)
	case c.Load != nil:
		return c.Load.validate()
	}
	return nil
}

func (w Way) known() bool {
	switch w {
	case WayError, WayRefuse, WayPanic, WayHang, WayExit, WaySlots, WayItem:
		return true
	default:
		return false
	}
}
