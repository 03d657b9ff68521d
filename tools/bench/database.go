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
)

const stopTimeout = 30 * time.Second

type cluster struct {
	*embedded.Postgres

	admin *pgx.Conn
	dir   string
	own   bool   // the directory was created for this
	logs  string // of the processes; kept on failure
}

func openCluster(ctx context.Context, cfg config) (pg *cluster, err error) {
	pg = &cluster{dir: cfg.dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, pg.close(false))
		}
	}()
	if pg.logs, err = os.MkdirTemp("", "tranche-bench-logs-"); err != nil {
		return pg, fmt.Errorf("make a directory for logs: %w", err)
	}
	if err := pg.makeDir(); err != nil {
		return pg, err
	}
	pg.Postgres, err = embedded.StartPostgres(ctx, embedded.PostgresConfig{
		DataDir: filepath.Join(pg.dir, "postgres"), NoRestart: true, Bound: true,
	})
	if err != nil {
		return pg, err
	}
	if pg.admin, err = pgx.Connect(ctx, pg.URL()); err != nil {
		return pg, fmt.Errorf("connect to the cluster: %w", err)
	}
	return pg, pg.refuseUnsafe(ctx)
}

func (pg *cluster) log(name string) string {
	return filepath.Join(pg.logs, strings.ReplaceAll(name, " ", "-")+".log")
}

func (pg *cluster) makeDir() (err error) {
	if pg.dir != "" {
		return nil
	}
	if pg.dir, err = os.MkdirTemp(diskDir(), "tranche-bench-"); err != nil {
		return fmt.Errorf("make a directory for the cluster: %w", err)
	}
	pg.own = true
	// PostgreSQL may run as another user and needs access.
	if err := os.Chmod(pg.dir, 0o755); err != nil {
		return fmt.Errorf("open %s to the cluster's user: %w", pg.dir, err)
	}
	return nil
}

// diskDir returns a temporary directory on a disk. /tmp may be in memory: too small, and with free fsyncs.
func diskDir() string {
	const kept = "/var/tmp" // it survives a restart, so it is not in memory
	if info, err := os.Stat(kept); err == nil && info.IsDir() {
		return kept
	}
	return os.TempDir()
}

// refuseUnsafe rejects clusters that may lose commits.
func (pg *cluster) refuseUnsafe(ctx context.Context) error {
	for _, setting := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		var value string
		if err := pg.admin.QueryRow(ctx, `SELECT current_setting($1)`, setting).Scan(&value); err != nil {
			return fmt.Errorf("read the setting %s: %w", setting, err)
		}
		if value != "on" {
			return fmt.Errorf("%s is %s in this cluster; it must be on for numbers that mean something", setting, value)
		}
	}
	return nil
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
	if pg.own {
		err = errors.Join(err, os.RemoveAll(pg.dir))
	}
	if well {
		err = errors.Join(err, os.RemoveAll(pg.logs))
	}
	return err
}

// freshDatabase creates an empty database and takes a checkpoint, so that all samples start alike. It returns name
// and URL. The caller drops the database unless the name is empty.
func (pg *cluster) freshDatabase(ctx context.Context, contestant string) (name, at string, err error) {
	name = "tranche_bench_" + contestant
	quoted := pgx.Identifier{name}.Sanitize()
	for _, sql := range []string{"DROP DATABASE IF EXISTS " + quoted + " WITH (FORCE)", "CREATE DATABASE " + quoted} {
		if _, err := pg.admin.Exec(ctx, sql); err != nil {
			return "", "", fmt.Errorf("make database %s: %w", name, err)
		}
	}
	return name, pg.URLFor(name), pg.checkpoint(ctx)
}

func (pg *cluster) checkpoint(ctx context.Context) error {
	if _, err := pg.admin.Exec(ctx, "CHECKPOINT"); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

// dropDatabase also works after the end of ctx: Ctrl-C must not leave a database behind.
func (pg *cluster) dropDatabase(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	_, err := pg.admin.Exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
	if err != nil {
		return fmt.Errorf("drop database %s: %w", name, err)
	}
	return nil
}

// onConnection measures work on one connection to a fresh database with the schema.
func (pg *cluster) onConnection(ctx context.Context, contestant, schema string, n int,
	work func(*pgx.Conn, uuid.UUID) error,
) (s sample, err error) {
	name, at, err := pg.freshDatabase(ctx, contestant)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, pg.dropDatabase(ctx, name)) }()
	conn, err := pgx.Connect(ctx, at)
	if err != nil {
		return s, fmt.Errorf("connect to %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	if _, err := conn.Exec(ctx, schema); err != nil {
		return s, fmt.Errorf("make the tables of %s: %w", name, err)
	}
	watch, err := pg.startWatch(ctx, processes{"client": os.Getpid()})
	if err != nil {
		return s, err
	}
	if err := work(conn, uuid.Must(uuid.NewV7())); err != nil {
		return s, err
	}
	if s, err = watch.stop(ctx, n); err != nil {
		return s, err
	}
	return s, checkFloor(ctx, conn, n)
}

const floorProof = `SELECT count(*) FROM item JOIN part USING (run_id, ordinal) WHERE payload = result`

func checkFloor(ctx context.Context, conn *pgx.Conn, n int) error {
	var good int
	if err := conn.QueryRow(ctx, floorProof).Scan(&good); err != nil {
		return fmt.Errorf("check the results: %w", err)
	}
	if good != n {
		return fmt.Errorf("check the results: %d of %d are right", good, n)
	}
	return nil
}
