package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
)

// The services, and the steps that they do.
const (
	Interest = "interest"
	Letters  = "letters"

	stepInterest = "interest"
	stepLetter   = "letter"

	ledgerVariable  = "CLUSTER_LEDGER"
	versionVariable = "CLUSTER_VERSION"

	// working is how long a service has a chunk in hand, so that it dies with some, and the node with requests out.
	working = 100 * time.Millisecond
)

// account is an item.
type account struct {
	ID      string `json:"id"`
	Balance int64  `json:"balance,string"` // in cents
}

// interest is what the first step makes of it: a cent for each fifty.
func (a account) interest() int64 { return a.Balance / 50 }

// result is what both steps answer. The receipt is told once, and stands in the service's ledger.
type result struct {
	Interest int64  `json:"interest"`
	Receipt  string `json:"receipt"`
}

// RunService is a service until ctx ends.
func RunService(ctx context.Context, name string, log *zap.Logger) error {
	nc, err := endpoints.Connect(nats.Name(name), endpoints.LogTo(log))
	if err != nil {
		return err
	}
	defer nc.Close()
	const mode = os.O_APPEND | os.O_CREATE | os.O_WRONLY
	file, err := os.OpenFile(os.Getenv(ledgerVariable), mode, 0o600) //nolint:gosec // whoever starts it says where
	if err != nil {
		return fmt.Errorf("open the ledger of %s: %w", name, err)
	}
	svc, err := endpoints.New(nc, endpoints.Config{Name: name, Version: os.Getenv(versionVariable), Log: log})
	if err != nil {
		return errors.Join(err, file.Close())
	}
	l := &ledger{file: file, prefix: fmt.Sprintf("%s-%d", name, os.Getpid())}
	switch name {
	case Interest:
		err = endpoints.HandleList(svc, "year-end-interest", l.interest, endpoints.Concurrency(4))
	case Letters:
		err = endpoints.HandleList(svc, "letter", l.letters, endpoints.Concurrency(4))
	default:
		err = fmt.Errorf("there is no service %q here", name)
	}
	if err == nil {
		err = svc.Run(ctx)
	}
	return errors.Join(err, file.Close())
}

// ledger is where a service notes what it is about to answer.
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
		part, there, err := endpoints.PartOf[result](item, stepInterest)
		if err == nil && !there {
			err = fmt.Errorf("item %s has no interest", item.Key)
		}
		return part.Interest, err
	})
}

// answer notes all answers of a chunk in one write, and then gives them.
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
		return fmt.Errorf("note what is answered: %w", err)
	}
	for i, item := range items {
		item.Reply(results[i])
	}
	return nil
}
