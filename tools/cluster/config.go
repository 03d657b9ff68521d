package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

const (
	// DefaultItems is the size of the run, unless told otherwise.
	DefaultItems = 200_000

	minItems = 5_000
	maxItems = 10_000_000

	// paced is for how long the run would go on, were it not let go after the faults.
	paced = 240 // seconds
)

// Config says what to run. Programs and Repository are needed.
type Config struct {
	// Items is the size of the run. 0 means DefaultItems.
	Items int
	// Dir is where logs and ledgers go. Empty means a fresh directory under the user's data directory.
	Dir string
	// Repository is where docs and deploy are.
	Repository string
	// Tranche and Next are the program in this version and the next one, NATS is nats-server, and Self is this program,
	// which is the services when it is called with their name: see [RunService].
	Tranche, Next, NATS, Self string
	// Prometheus may be empty: then there is none.
	Prometheus string
	// Color has lines coloured.
	Color bool
	// Out and Err are standard output and standard error. nil means the process's.
	Out, Err io.Writer
}

func (c Config) withDefaults() (Config, error) {
	if runtime.GOOS != "linux" {
		return c, errors.New("it needs Linux, where each address of 127.0.0.0/8 is this machine's")
	}
	if c.Items == 0 {
		c.Items = DefaultItems
	}
	if c.Items < minItems || c.Items > maxItems {
		return c, fmt.Errorf("--items is %d; it must lie between %d and %d", c.Items, minItems, maxItems)
	}
	for _, needed := range []*string{&c.Repository, &c.Tranche, &c.Next, &c.NATS, &c.Self} {
		path, err := filepath.Abs(*needed)
		if err == nil {
			_, err = os.Stat(path)
		}
		if err != nil {
			return c, fmt.Errorf("what is to be shown is not there: %w; make cluster builds it", err)
		}
		*needed = path
	}
	if c.Out == nil {
		c.Out = os.Stdout
	}
	if c.Err == nil {
		c.Err = os.Stderr
	}
	return c, nil
}

// rate is how many items a second each step may do while things break.
func (c Config) rate() int { return c.Items / paced }

// chunk is small enough that something is recorded ten times a second, so that a standstill is seen.
func (c Config) chunk() int { return max(1, c.rate()/10) }
