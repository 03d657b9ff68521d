package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/tranchehq/tranche/tools/demokit"
)

// noted is what a service wrote into its ledger.
type noted struct {
	key      string
	interest int64
}

// proof is what the ledgers of a service say: what was answered by receipt, and how many answers there were.
type proof struct {
	answers map[string]noted
	torn    int // lines that a killed service did not finish
}

// readLedgers reads those of all instances of a service.
func (c *cluster) readLedgers(service string) (*proof, error) {
	p := &proof{answers: make(map[string]noted, c.config.Items)}
	files, err := filepath.Glob(c.dir.File(ledgers, service+"-*.txt"))
	if err != nil || len(files) == 0 {
		return nil, errors.Join(fmt.Errorf("service %s has no ledger", service), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(filepath.Clean(file))
		if err != nil {
			return nil, fmt.Errorf("read a ledger: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			var n noted
			var receipt string
			if _, err := fmt.Sscanf(line, "%s %d %s\n", &n.key, &n.interest, &receipt); err != nil {
				p.torn++
				continue
			}
			p.answers[receipt] = n
		}
	}
	return p, nil
}

// checkStep holds what is exported of a step against the items and the ledgers of its service.
func (c *cluster) checkStep(ctx context.Context, step, service string) error {
	ledgers, err := c.readLedgers(service)
	if err != nil {
		return err
	}
	file := c.dir.File(step + ".ndjson")
	err = c.shell.Typed(ctx, exitOK, "run", "export", "last", "--step", step, "--out", filepath.Base(file))
	if err != nil {
		return err
	}
	right, wrong, err := ledgers.count(file, c.config.Items)
	if err != nil {
		return err
	}
	check := demokit.Check{
		Left: "results of " + step, Got: right, Want: int64(c.config.Items), Right: "items, each as its service noted it",
		FirstWrong: wrong,
	}
	c.story.Check(check)
	c.story.Say("    answered in all %s times: %s items were done again after a fault.",
		demokit.Grouped(int64(len(ledgers.answers))), demokit.Grouped(int64(len(ledgers.answers))-right))
	if !check.Holds() {
		c.wrong = append(c.wrong, check.Difference())
	}
	c.lost = max(c.lost, int64(c.config.Items)-right)
	return nil
}

// count reads an export and returns how many items are done and right, each counted once, and an example of one that
// is not.
func (p *proof) count(file string, items int) (right int64, wrong string, err error) {
	f, err := os.Open(filepath.Clean(file))
	if err != nil {
		return 0, "", fmt.Errorf("read the results back: %w", err)
	}
	defer func() { _ = f.Close() }()
	seen := make([]bool, items)
	lines := json.NewDecoder(bufio.NewReaderSize(f, 1<<20))
	for {
		var line exported
		err := lines.Decode(&line)
		if errors.Is(err, io.EOF) {
			return right, wrong, nil
		}
		if err != nil {
			return 0, "", fmt.Errorf("read the results back: %s: %w", file, err)
		}
		why := p.judge(&line, seen)
		if why == "" {
			right++
		} else if wrong == "" {
			wrong = why
		}
	}
}

// exported is a line of an export.
type exported struct {
	Key    string `json:"key"`
	State  string `json:"state"`
	Result result `json:"result"`
}

// judge says what is wrong with a result, and notes its item as seen.
func (p *proof) judge(line *exported, seen []bool) string {
	n, err := number(line.Key)
	if err != nil || n >= len(seen) || seen[n] {
		return fmt.Sprintf("%s is no item, or stands there twice", line.Key)
	}
	seen[n] = true
	want := makeAccount(n)
	answer, told := p.answers[line.Result.Receipt]
	switch {
	case line.State != "done":
		return fmt.Sprintf("%s is %s", line.Key, line.State)
	case !told || answer.key != line.Key || answer.interest != line.Result.Interest:
		return fmt.Sprintf("%s: no service has noted %+v", line.Key, line.Result)
	case line.Result.Interest != want.interest():
		return fmt.Sprintf("%s: %d is recorded, and %d is right", line.Key, line.Result.Interest, want.interest())
	}
	return ""
}

// makeAccount is the item of a number.
func makeAccount(n int) account {
	return account{ID: fmt.Sprintf("C-%d", n), Balance: int64(n)*37%1_000_000 + 50}
}

func number(key string) (n int, err error) {
	_, err = fmt.Sscanf(key, "C-%d", &n)
	return n, err
}

// writeItems writes the file that the run is started with.
func (c *cluster) writeItems(name string) error {
	var text strings.Builder
	text.WriteString("id,balance\n")
	for n := range c.config.Items {
		a := makeAccount(n)
		fmt.Fprintf(&text, "%s,%d\n", a.ID, a.Balance)
	}
	if err := os.WriteFile(c.dir.File(name), []byte(text.String()), 0o600); err != nil {
		return fmt.Errorf("write the items: %w", err)
	}
	return nil
}
