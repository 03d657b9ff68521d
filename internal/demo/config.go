package demo

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

const (
	// AccountsPerScale is pgbench's.
	AccountsPerScale = 100_000
	// DefaultScale makes 100,000 accounts.
	DefaultScale = 1
	// DefaultTransactionsPerScale is how many movements a year has, unless told otherwise.
	DefaultTransactionsPerScale = 20_000
	// MaxDefaultTransactions bounds that: it is the run that is to be shown, not pgbench.
	MaxDefaultTransactions = 100_000

	maxScale        = 200
	minTransactions = 100
	maxTransactions = 100_000_000
)

// Config says how large a demo is and where it goes. The zero value is a good one.
type Config struct {
	// Scale is the size of the bank: 100,000 accounts each. 0 means DefaultScale.
	Scale int
	// Transactions is how many movements the year has. 0 means DefaultTransactionsPerScale for each scale, at most
	// MaxDefaultTransactions.
	Transactions int
	// Dir is where statements and logs go. Empty means a fresh directory under the user's data directory.
	Dir string
	// Keep leaves everything running at the end, until the context ends.
	Keep bool
	// Color has the demo's own lines coloured.
	Color bool
	// Program is the tranche program. Empty means this one.
	Program string
	// Out and Err are standard output and standard error, of the commands too. nil means the process's.
	Out, Err io.Writer

	// exported is called with the file of statements before the proof, by tests that tamper with it.
	exported func(file string) error
	// now names the directory.
	now func() time.Time
}

func (c Config) withDefaults() (Config, error) {
	if c.Scale == 0 {
		c.Scale = DefaultScale
	}
	if c.Scale < 1 || c.Scale > maxScale {
		return c, fmt.Errorf("--scale is %d; it must lie between 1 and %d (100,000 accounts each)", c.Scale, maxScale)
	}
	if c.Transactions == 0 {
		c.Transactions = min(DefaultTransactionsPerScale*c.Scale, MaxDefaultTransactions)
	}
	if c.Transactions < minTransactions || c.Transactions > maxTransactions {
		return c, fmt.Errorf("--transactions is %d; it must lie between %d and %d",
			c.Transactions, minTransactions, maxTransactions)
	}
	if c.Out == nil {
		c.Out = os.Stdout
	}
	if c.Err == nil {
		c.Err = os.Stderr
	}
	if c.exported == nil {
		c.exported = func(string) error { return nil }
	}
	if c.now == nil {
		c.now = time.Now
	}
	if c.Program != "" {
		return c, nil
	}
	program, err := os.Executable()
	if err != nil {
		return c, errors.Join(errors.New("find the tranche program itself"), err)
	}
	c.Program = program
	return c, nil
}
