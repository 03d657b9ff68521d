package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const (
	riverPoll       = 10 * time.Millisecond // interval for polling the end, once all jobs are done
	riverTuneShare  = 5                     // tuning uses a fifth of the jobs
	riverTuneFewest = 2_000
	riverPool       = 10 // connections
)

type echoArgs struct {
	Key     string          `json:"k"`
	Payload json.RawMessage `json:"d"`
}

// Kind names the job for River.
func (echoArgs) Kind() string { return "echo" }

// echoWorker records its input as output, like the echo service.
type echoWorker struct {
	river.WorkerDefaults[echoArgs]

	left *atomic.Int64
	done chan<- struct{} // receives a value when left reaches 0
}

// Work does one job.
func (w *echoWorker) Work(ctx context.Context, job *river.Job[echoArgs]) error {
	if err := river.RecordOutput(ctx, job.Args.Payload); err != nil {
		return err
	}
	if w.left.Add(-1) == 0 {
		w.done <- struct{}{}
	}
	return nil
}

type riverClient = river.Client[pgx.Tx]

type riverSetup struct {
	workers int
	insert  int  // jobs per call of InsertManyFast
	ahead   bool // insert all jobs before starting the workers
}

func (s riverSetup) String() string {
	when := "working while inserting"
	if s.ahead {
		when = "inserted first"
	}
	return fmt.Sprintf("MaxWorkers %d, InsertManyFast of %d, %s", s.workers, s.insert, when)
}

// riverQueue runs one job per item on River: with its fastest insert (COPY), fetches as frequent as is useful, no job
// timeouts, and output recorded with the completion, in batches. tune selects the best of several settings. The
// worker is in this process, so there is no hop to a service.
type riverQueue struct {
	pg     *cluster
	input  items
	chosen riverSetup
}

func (r *riverQueue) name() string  { return "river" }
func (r *riverQueue) size() int     { return r.input.n }
func (r *riverQueue) setup() string { return r.chosen.String() }

func (r *riverQueue) tune(ctx context.Context) error {
	trial := *r
	trial.input.n = min(max(r.input.n/riverTuneShare, riverTuneFewest), r.input.n)
	best := 0.0
	for _, ahead := range []bool{true, false} {
		for _, workers := range []int{500, 2_000, 10_000} {
			trial.chosen = riverSetup{workers: workers, insert: 10_000, ahead: ahead}
			s, err := trial.measure(ctx)
			if err != nil {
				return fmt.Errorf("with %s: %w", trial.chosen, err)
			}
			fmt.Fprintf(os.Stderr, "tuning   river      %9.0f items/s  %s\n", s.Rate, trial.chosen)
			if s.Rate > best {
				best, r.chosen = s.Rate, trial.chosen
			}
		}
	}
	return nil
}

func (r *riverQueue) measure(ctx context.Context) (s sample, err error) {
	name, at, err := r.pg.freshDatabase(ctx, "river")
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, r.pg.dropDatabase(ctx, name)) }()
	poolConfig, err := pgxpool.ParseConfig(at)
	if err != nil {
		return s, fmt.Errorf("the database's URL: %w", err)
	}
	poolConfig.MaxConns = riverPool
	pool, err := pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		return s, fmt.Errorf("connect to %s: %w", name, err)
	}
	defer pool.Close()
	return r.measureOn(ctx, pool)
}

func (r *riverQueue) measureOn(ctx context.Context, pool *pgxpool.Pool) (s sample, err error) {
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: quietLogger()})
	if err != nil {
		return s, fmt.Errorf("prepare River's tables: %w", err)
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return s, fmt.Errorf("make River's tables: %w", err)
	}
	done := make(chan struct{}, 1)
	client, err := r.client(driver, done)
	if err != nil {
		return s, err
	}
	watch, err := r.pg.startWatch(ctx, processes{"client": os.Getpid()})
	if err != nil {
		return s, err
	}
	if err := r.work(ctx, pool, client, done); err != nil {
		return s, err
	}
	if s, err = watch.stop(ctx, r.input.n); err != nil {
		return s, err
	}
	stop, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if err := client.Stop(stop); err != nil {
		return s, fmt.Errorf("stop River: %w", err)
	}
	return s, r.check(ctx, pool)
}

func (r *riverQueue) client(driver *riverpgxv5.Driver, done chan<- struct{}) (*riverClient, error) {
	var left atomic.Int64
	left.Store(int64(r.input.n))
	workers := river.NewWorkers()
	if err := river.AddWorkerSafely(workers, &echoWorker{left: &left, done: done}); err != nil {
		return nil, fmt.Errorf("add River's worker: %w", err)
	}
	client, err := river.NewClient(driver, &river.Config{
		FetchCooldown:     2 * time.Millisecond,
		FetchPollInterval: 20 * time.Millisecond,
		JobTimeout:        -1,
		Logger:            quietLogger(),
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: r.chosen.workers}},
		Workers:           workers,
	})
	if err != nil {
		return nil, fmt.Errorf("make River's client: %w", err)
	}
	return client, nil
}

func (r *riverQueue) work(ctx context.Context, pool *pgxpool.Pool, client *riverClient, done <-chan struct{}) error {
	if r.chosen.ahead {
		if err := r.insert(ctx, client); err != nil {
			return err
		}
	}
	if err := client.Start(ctx); err != nil {
		return fmt.Errorf("start River: %w", err)
	}
	if !r.chosen.ahead {
		if err := r.insert(ctx, client); err != nil {
			return err
		}
	}
	select {
	case <-done:
	case <-ctx.Done():
		return ctx.Err()
	}
	return awaitRiver(ctx, pool)
}

func (r *riverQueue) insert(ctx context.Context, client *riverClient) error {
	for lo := 0; lo < r.input.n; lo += r.chosen.insert {
		jobs := make([]river.InsertManyParams, min(r.chosen.insert, r.input.n-lo))
		for k := range jobs {
			jobs[k].Args = echoArgs{
				Key:     string(r.input.appendKey(nil, lo+k)),
				Payload: r.input.appendPayload(nil, lo+k),
			}
		}
		if _, err := client.InsertManyFast(ctx, jobs); err != nil {
			return fmt.Errorf("insert River's jobs from %d: %w", lo, err)
		}
	}
	return nil
}

// riverUnfinished uses River's index on states.
const riverUnfinished = `SELECT EXISTS (SELECT FROM river_job WHERE state IN
('available', 'pending', 'retryable', 'running', 'scheduled'))`

func awaitRiver(ctx context.Context, pool *pgxpool.Pool) error {
	tick := time.NewTicker(riverPoll)
	defer tick.Stop()
	for {
		var unfinished bool
		if err := pool.QueryRow(ctx, riverUnfinished).Scan(&unfinished); err != nil {
			return fmt.Errorf("look for River's end: %w", err)
		}
		if !unfinished {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

const riverProof = `SELECT count(*) FROM river_job WHERE state = 'completed' AND metadata -> 'output' = args -> 'd'`

func (r *riverQueue) check(ctx context.Context, pool *pgxpool.Pool) error {
	var good int
	if err := pool.QueryRow(ctx, riverProof).Scan(&good); err != nil {
		return fmt.Errorf("check River's outputs: %w", err)
	}
	if good != r.input.n {
		return fmt.Errorf("check River's outputs: %d of %d are right", good, r.input.n)
	}
	return nil
}

func quietLogger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}
