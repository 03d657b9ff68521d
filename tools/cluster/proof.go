package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/tools/demokit"
)

type recorded struct {
	key      string
	interest int64
}

// proof is the content of a service's ledgers: the answers by receipt.
type proof struct {
	answers map[string]recorded
}

func (c *cluster) readLedgers(service string) (*proof, error) {
	p := &proof{answers: make(map[string]recorded, c.settings.items)}
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
			var n recorded
			var receipt string
			if _, err := fmt.Sscanf(line, "%s %d %s\n", &n.key, &n.interest, &receipt); err == nil {
				p.answers[receipt] = n
			} // else a killed service did not finish it
		}
	}
	return p, nil
}

func (c *cluster) checkStep(ctx context.Context, step, service string) error {
	ledgers := demokit.Must(c.readLedgers(service))
	file := c.dir.File(step + ".ndjson")
	demokit.Stop(c.shell.Typed(ctx, exitOK, "run", "export", "last", "--step", step, "--out", filepath.Base(file)))
	right, wrong, err := ledgers.count(file, c.settings.items)
	if err != nil {
		return err
	}
	check := demokit.Check{
		Left: "results of " + step, Got: right, Want: int64(c.settings.items),
		Right: "items, each as its service recorded it", FirstWrong: wrong,
	}
	c.story.Check(check)
	c.story.Say("    answered %s times in total: %s items were rerun after a fault.",
		demokit.Grouped(int64(len(ledgers.answers))), demokit.Grouped(int64(len(ledgers.answers))-right))
	c.checks = append(c.checks, check)
	c.lost = max(c.lost, int64(c.settings.items)-right)
	return nil
}

// count reads an export and returns the number of correct items, each counted once, and an example of a wrong one.
func (p *proof) count(file string, items int) (right int64, wrong string, err error) {
	seen := make([]bool, items)
	err = demokit.EachLine(file, func(line *exported) {
		why := p.judge(line, seen)
		if why == "" {
			right++
		} else if wrong == "" {
			wrong = why
		}
	})
	return right, wrong, err
}

type exported struct {
	Key    string `json:"key"`
	State  string `json:"state"`
	Result result `json:"result"`
}

// judge returns what is wrong with a result, and marks its item as seen.
func (p *proof) judge(line *exported, seen []bool) string {
	var n int
	if _, err := fmt.Sscanf(line.Key, "C-%d", &n); err != nil || n >= len(seen) || seen[n] {
		return fmt.Sprintf("%s is not an item, or appears twice", line.Key)
	}
	seen[n] = true
	want := makeAccount(n)
	answer, told := p.answers[line.Result.Receipt]
	switch {
	case line.State != "done":
		return fmt.Sprintf("%s is %s", line.Key, line.State)
	case !told || answer.key != line.Key || answer.interest != line.Result.Interest:
		return fmt.Sprintf("%s: no service recorded %+v", line.Key, line.Result)
	case line.Result.Interest != want.interest():
		return fmt.Sprintf("%s: got %d, want %d", line.Key, line.Result.Interest, want.interest())
	}
	return ""
}

func makeAccount(n int) account {
	return account{ID: fmt.Sprintf("C-%d", n), Balance: int64(n)*37%1_000_000 + 50}
}

func (c *cluster) writeItems(name string) {
	var text strings.Builder
	text.WriteString("id,balance\n")
	for n := range c.settings.items {
		a := makeAccount(n)
		fmt.Fprintf(&text, "%s,%d\n", a.ID, a.Balance)
	}
	demokit.Stop(os.WriteFile(c.dir.File(name), []byte(text.String()), 0o600))
}

// The services and their steps.
const (
	interestService = "interest"
	lettersService  = "letters"

	stepInterest = "interest"
	stepLetter   = "letter"

	ledgerVariable  = "CLUSTER_LEDGER"
	versionVariable = "CLUSTER_VERSION"

	// working is the duration of a chunk, so that some are in progress when a service dies.
	working = 100 * time.Millisecond
)

type account struct {
	ID      string `json:"id"`
	Balance int64  `json:"balance,string"` // in cents
}

// interest is the first step's result: a cent per fifty.
func (a account) interest() int64 { return a.Balance / 50 }

// result is the answer of both steps. Its receipt is unique and in the service's ledger.
type result struct {
	Interest int64  `json:"interest"`
	Receipt  string `json:"receipt"`
}

func runService(ctx context.Context, name string, log *zap.Logger) error {
	nc, err := endpoints.Connect(nats.Name(name), endpoints.LogTo(log))
	if err != nil {
		return err
	}
	defer nc.Close()
	const mode = os.O_APPEND | os.O_CREATE | os.O_WRONLY
	file, err := os.OpenFile(os.Getenv(ledgerVariable), mode, 0o600) //nolint:gosec // its starter names it
	if err != nil {
		return fmt.Errorf("open the ledger of %s: %w", name, err)
	}
	svc, err := endpoints.New(nc, endpoints.Config{Name: name, Version: os.Getenv(versionVariable), Log: log})
	if err != nil {
		return errors.Join(err, file.Close())
	}
	l := &ledger{file: file, prefix: fmt.Sprintf("%s-%d", name, os.Getpid())}
	switch name {
	case interestService:
		err = endpoints.HandleList(svc, "year-end-interest", l.interest, endpoints.Concurrency(4))
	case lettersService:
		err = endpoints.HandleList(svc, "letter", l.letters, endpoints.Concurrency(4))
	default:
		err = fmt.Errorf("no service is named %q", name)
	}
	if err == nil {
		err = svc.Run(ctx)
	}
	return errors.Join(err, file.Close())
}

// ledger records answers before they are sent.
type ledger struct {
	file   *os.File
	prefix string
	last   atomic.Int64
}

func (l *ledger) interest(ctx context.Context, chunk *endpoints.Chunk[account, result]) error {
	return l.answer(ctx, chunk, func(item *endpoints.Item[account, result]) (int64, error) {
		return item.In.interest(), nil
	})
}

func (l *ledger) letters(ctx context.Context, chunk *endpoints.Chunk[account, result]) error {
	return l.answer(ctx, chunk, func(item *endpoints.Item[account, result]) (int64, error) {
		part, there, err := endpoints.PartOf[result](ctx, item, stepInterest)
		if err == nil && !there {
			err = fmt.Errorf("item %s has no interest", item.Key)
		}
		return part.Interest, err
	})
}

// answer records all answers of a chunk in one write, and then sends them.
func (l *ledger) answer(
	ctx context.Context, chunk *endpoints.Chunk[account, result],
	of func(*endpoints.Item[account, result]) (int64, error),
) error {
	select {
	case <-time.After(working):
	case <-ctx.Done():
		return ctx.Err()
	}
	items := chunk.Items()
	results, lines := make([]result, len(items)), []byte(nil)
	for i, item := range items {
		amount, err := of(item)
		if err != nil {
			return err
		}
		results[i] = result{Interest: amount, Receipt: fmt.Sprintf("%s/%d", l.prefix, l.last.Add(1))}
		lines = fmt.Appendf(lines, "%s %d %s\n", item.Key, amount, results[i].Receipt)
	}
	if _, err := l.file.Write(lines); err != nil {
		return fmt.Errorf("record the answers: %w", err)
	}
	for i, item := range items {
		item.Reply(results[i])
	}
	return nil
}
