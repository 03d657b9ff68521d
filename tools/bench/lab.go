package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/tools/demokit"
)

type lab struct {
	*bed
	db    *pgx.Conn
	items int // of a large run
}

func inLab(
	measure func(context.Context, *lab, *report) error,
) func(context.Context, config, *cluster, *report) error {
	return func(ctx context.Context, cfg config, pg *cluster, rep *report) error {
		return withLab(ctx, cfg, pg, "tranche", func(l *lab) error { return measure(ctx, l, rep) })
	}
}

func withLab(ctx context.Context, cfg config, pg *cluster, database string, work func(*lab) error) (err error) {
	b, err := openNode(ctx, cfg, pg, database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	l := &lab{bed: b, items: cfg.items}
	if l.db, err = pgx.Connect(ctx, b.database); err != nil {
		return fmt.Errorf("connect to the node's database: %w", err)
	}
	defer func() { err = errors.Join(err, l.db.Close(context.WithoutCancel(ctx))) }()
	return work(l)
}

func (b *bed) command(ctx context.Context, in io.Reader, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, b.program, append([]string{"--url", b.api, "--json"}, args...)...)
	var out, said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &said
	cmd.Env = demokit.Environment()
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("tranche %s %s: %w; it said:\n%s", args[0], args[1], err, said.String())
	}
	return out.Bytes(), nil
}

func (l *lab) begin(ctx context.Context, endpoint string, n int, flags ...string) (run string, err error) {
	args := append([]string{"run", "start", "--endpoint", endpoint, "--items", "-", "--key", "id"}, flags...)
	out, err := l.command(ctx, items{n: n}.csv(), args...)
	if err != nil {
		return "", err
	}
	var s started
	if err := json.Unmarshal(out, &s); err != nil {
		return "", fmt.Errorf("understand the answer to a start: %w", err)
	}
	return s.Run, nil
}

func (l *lab) cancel(ctx context.Context, run string) error {
	_, err := l.command(ctx, nil, "run", "cancel", run)
	return err
}

func (l *lab) number(ctx context.Context, sql string, args ...any) (n float64, err error) {
	if err := l.db.QueryRow(ctx, sql, args...).Scan(&n); err != nil {
		return 0, fmt.Errorf("ask the node's database: %w", err)
	}
	return n, nil
}

func (l *lab) numbers(ctx context.Context, run string, statements ...string) (all []float64, err error) {
	for _, sql := range statements {
		n, err := l.number(ctx, sql, run)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

// labPoll is the interval for polling the database.
const labPoll = 20 * time.Millisecond

// until waits for an SQL condition, at most for atMost.
func (l *lab) until(ctx context.Context, atMost time.Duration, what, sql string, args ...any) error {
	timed, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	for {
		var met bool
		if err := l.db.QueryRow(ctx, "SELECT "+sql, args...).Scan(&met); err != nil {
			return fmt.Errorf("ask whether %s: %w", what, err)
		}
		if met {
			return nil
		}
		if err := backoff.Sleep(timed, labPoll); err != nil {
			return fmt.Errorf("wait until %s: %w; the logs are in %s", what, err, l.pg.logs)
		}
	}
}

const (
	hasCompleted = `EXISTS (SELECT FROM batchrun WHERE id = $1 AND state = 'completed')`
	countDone    = `SELECT coalesce(sum(bit_count(done)), 0)::float8 FROM work_block WHERE run_id = $1`
	countFailed  = `SELECT coalesce(sum(bit_count(failed)), 0)::float8 FROM work_block WHERE run_id = $1`
	hasBegun     = `EXISTS (SELECT FROM work_block WHERE run_id = $1 AND bit_count(done) > 0)`
)

// rate returns a run's completed items per second over a window from now.
func (l *lab) rate(ctx context.Context, run string, window time.Duration) (float64, error) {
	before, err := l.number(ctx, countDone, run)
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	if err := backoff.Sleep(ctx, window); err != nil {
		return 0, err
	}
	after, err := l.number(ctx, countDone, run)
	return (after - before) / time.Since(begun).Seconds(), err
}
