package main

import (
	"context"
	"encoding/json"
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

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/tools/demokit"
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

func riverContestant(pg *cluster, input items) contestant {
	r := &riverQueue{pg: pg, input: input}
	return contestant{
		name: "river", size: input.n, tune: r.tune, measure: r.measure, setup: func() string { return r.chosen.String() },
	}
}

func (r *riverQueue) tune(ctx context.Context) {
	trial := *r
	trial.input.n = min(max(r.input.n/riverTuneShare, riverTuneFewest), r.input.n)
	best := 0.0
	for _, ahead := range []bool{true, false} {
		for _, workers := range []int{500, 2_000, 10_000} {
			trial.chosen = riverSetup{workers: workers, insert: 10_000, ahead: ahead}
			s := trial.measure(ctx)
			fmt.Fprintf(os.Stderr, "tuning   river      %9.0f items/s  %s\n", s.Rate, trial.chosen)
			if s.Rate > best {
				best, r.chosen = s.Rate, trial.chosen
			}
		}
	}
}

func (r *riverQueue) measure(ctx context.Context) (s sample) {
	r.pg.withDatabase(ctx, "river", func(url string) {
		config, err := pgxpool.ParseConfig(url)
		check(err, "the database's URL")
		config.MaxConns = riverPool
		pool, err := pgxpool.NewWithConfig(ctx, config)
		check(err, "connect to River's database")
		defer pool.Close()
		s = r.measureOn(ctx, pool)
	})
	return s
}

func (r *riverQueue) measureOn(ctx context.Context, pool *pgxpool.Pool) sample {
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: quietLogger()})
	check(err, "prepare River's tables")
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	check(err, "make River's tables")
	done := make(chan struct{}, 1)
	client := r.client(driver, done)
	watch := r.pg.startWatch(ctx, processes{"client": os.Getpid()})
	r.work(ctx, pool, client, done)
	s := watch.stop(ctx, r.input.n)
	stop, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	check(client.Stop(stop), "stop River")
	prove(r.input.n, pool.QueryRow(ctx, riverProof))
	return s
}

func (r *riverQueue) client(driver *riverpgxv5.Driver, done chan<- struct{}) *riverClient {
	var left atomic.Int64
	left.Store(int64(r.input.n))
	workers := river.NewWorkers()
	check(river.AddWorkerSafely(workers, &echoWorker{left: &left, done: done}), "add River's worker")
	client, err := river.NewClient(driver, &river.Config{
		FetchCooldown:     2 * time.Millisecond,
		FetchPollInterval: 20 * time.Millisecond,
		JobTimeout:        -1,
		Logger:            quietLogger(),
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: r.chosen.workers}},
		Workers:           workers,
	})
	check(err, "make River's client")
	return client
}

func (r *riverQueue) work(ctx context.Context, pool *pgxpool.Pool, client *riverClient, done <-chan struct{}) {
	if r.chosen.ahead {
		r.insert(ctx, client)
	}
	check(client.Start(ctx), "start River")
	if !r.chosen.ahead {
		r.insert(ctx, client)
	}
	select {
	case <-done:
	case <-ctx.Done():
		demokit.Stop(ctx.Err())
	}
	for unfinished := true; unfinished; {
		check(pool.QueryRow(ctx, riverUnfinished).Scan(&unfinished), "find River's end")
		if unfinished {
			demokit.Stop(backoff.Sleep(ctx, riverPoll))
		}
	}
}

func (r *riverQueue) insert(ctx context.Context, client *riverClient) {
	for lo := 0; lo < r.input.n; lo += r.chosen.insert {
		jobs := make([]river.InsertManyParams, min(r.chosen.insert, r.input.n-lo))
		for k := range jobs {
			jobs[k].Args = echoArgs{
				Key:     string(r.input.appendKey(nil, lo+k)),
				Payload: r.input.appendPayload(nil, lo+k),
			}
		}
		_, err := client.InsertManyFast(ctx, jobs)
		check(err, "insert River's jobs from %d", lo)
	}
}

// riverUnfinished uses River's index on states.
const riverUnfinished = `SELECT EXISTS (SELECT FROM river_job WHERE state IN
('available', 'pending', 'retryable', 'running', 'scheduled'))`

const riverProof = `SELECT count(*) FROM river_job WHERE state = 'completed' AND metadata -> 'output' = args -> 'd'`

func quietLogger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}
