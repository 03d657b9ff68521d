package demo

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

const (
	// DefaultAccounts is how many accounts the bank has, unless told otherwise.
	DefaultAccounts = 100_000
	// DefaultPDFs is how many of them get their statement as a PDF, unless told otherwise.
	DefaultPDFs = 2_000
	// AllPDFs gives every account one.
	AllPDFs = -1

	minAccounts = 300
	maxAccounts = 10_000_000
)

// Config says how large a demo is and where it goes. The zero value is a good one but for PDFs, of which it makes none.
type Config struct {
	// Accounts is the size of the bank. 0 means DefaultAccounts.
	Accounts int
	// PDFs is how many accounts get a PDF; the others get the same as JSON. AllPDFs means all of them.
	PDFs int
	// Dir is where statements and logs go. Empty means a fresh directory under the user's data directory.
	Dir string
	// Keep leaves everything running at the end, until the context ends.
	Keep bool
	// Enter, when it is not nil, leaves everything running, too, until a line comes from it: a person looks.
	Enter io.Reader
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
	if c.Accounts == 0 {
		c.Accounts = DefaultAccounts
	}
	if c.Accounts < minAccounts || c.Accounts > maxAccounts {
		return c, fmt.Errorf("--accounts is %d; it must lie between %d and %d", c.Accounts, minAccounts, maxAccounts)
	}
	if c.PDFs < AllPDFs {
		return c, fmt.Errorf("--pdfs is %d; it must be a number of accounts, or all", c.PDFs)
	}
	if c.PDFs == AllPDFs || c.PDFs > c.Accounts {
		c.PDFs = c.Accounts
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
