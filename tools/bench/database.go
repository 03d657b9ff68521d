package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/tools/demokit"
)

const stopTimeout = 30 * time.Second

type cluster struct {
	*embedded.Postgres

	admin *pgx.Conn
	dir   string // of all data
	logs  string // of the processes; kept on failure
}

// withCluster starts a private cluster in a directory below parent and stops it after use.
func withCluster(ctx context.Context, parent string, use func(*cluster)) error {
	pg := &cluster{}
	err := demokit.Try(func() {
		pg.open(ctx, parent)
		use(pg)
	})
	return errors.Join(err, pg.close(err == nil))
}

func (pg *cluster) open(ctx context.Context, parent string) {
	var err error
	pg.logs, err = os.MkdirTemp("", "tranche-bench-logs-")
	check(err, "make a directory for logs")
	pg.dir, err = os.MkdirTemp(parent, "tranche-bench-")
	check(err, "make a directory for the cluster (-dir)")
	// PostgreSQL may run as another user and needs access.
	check(os.Chmod(pg.dir, 0o755), "open %s to the cluster's user", pg.dir)
	pg.Postgres = demokit.Must(embedded.StartPostgres(ctx, embedded.PostgresConfig{
		DataDir: filepath.Join(pg.dir, "postgres"), NoRestart: true, Bound: true,
	}))
	pg.admin, err = pgx.Connect(ctx, pg.URL())
	check(err, "connect to the cluster")
	for _, setting := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		var value string
		check(pg.admin.QueryRow(ctx, `SELECT current_setting($1)`, setting).Scan(&value), "read the setting %s", setting)
		if value != "on" {
			demokit.Stop(fmt.Errorf("%s is %s in this cluster; it must be on, or the cluster may lose commits", setting, value))
		}
	}
}

func (pg *cluster) log(name string) string {
	return filepath.Join(pg.logs, strings.ReplaceAll(name, " ", "-")+".log")
}

// close stops the cluster and keeps the logs on failure.
func (pg *cluster) close(well bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	var err error
	if pg.admin != nil {
		err = pg.admin.Close(ctx)
	}
	if pg.Postgres != nil {
		err = errors.Join(err, pg.Stop(ctx))
	}
	err = errors.Join(err, os.RemoveAll(pg.dir))
	if well {
		err = errors.Join(err, os.RemoveAll(pg.logs))
	}
	return err
}

// withDatabase creates an empty database and takes a checkpoint, so that all samples start alike. It drops the
// database after use, to free its space.
func (pg *cluster) withDatabase(ctx context.Context, contestant string, use func(url string)) {
	name := "tranche_bench_" + contestant
	quoted := pgx.Identifier{name}.Sanitize()
	for _, sql := range []string{"DROP DATABASE IF EXISTS " + quoted + " WITH (FORCE)", "CREATE DATABASE " + quoted} {
		_, err := pg.admin.Exec(ctx, sql)
		check(err, "make database %s", name)
	}
	pg.checkpoint(ctx)
	use(pg.URLFor(name))
	_, err := pg.admin.Exec(ctx, "DROP DATABASE "+quoted+" WITH (FORCE)")
	check(err, "drop database %s", name)
}

func (pg *cluster) checkpoint(ctx context.Context) {
	_, err := pg.admin.Exec(ctx, "CHECKPOINT")
	check(err, "checkpoint")
}

const floorProof = `SELECT count(*) FROM item JOIN part USING (run_id, ordinal) WHERE payload = result`

// onFloor loads n items on one connection to a fresh database with the schema, and processes them page by page.
func (pg *cluster) onFloor(ctx context.Context, contestant, schema string, n int,
	load func(context.Context, *pgx.Conn, uuid.UUID),
	work func(ctx context.Context, conn *pgx.Conn, run uuid.UUID, lo, hi int),
) (s sample) {
	pg.withDatabase(ctx, contestant, func(url string) {
		conn, err := pgx.Connect(ctx, url)
		check(err, "connect to the database of %s", contestant)
		defer func() { _ = conn.Close(ctx) }() // all is committed
		_, err = conn.Exec(ctx, schema)
		check(err, "make the tables of %s", contestant)
		watch, run := pg.startWatch(ctx, processes{"client": os.Getpid()}), uuid.Must(uuid.NewV7())
		load(ctx, conn, run)
		for lo := 0; lo < n; lo += floorPage {
			work(ctx, conn, run, lo, min(lo+floorPage, n))
		}
		s = watch.stop(ctx, n)
		prove(n, conn.QueryRow(ctx, floorProof))
	})
	return s
}

// prove compares the number of right results in a row with what is wanted.
func prove(want int, row pgx.Row) {
	var right int
	check(row.Scan(&right), "check the results")
	if right != want {
		demokit.Stop(fmt.Errorf("check the results: %d of %d are right", right, want))
	}
}
