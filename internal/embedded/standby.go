package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const standbyName = "standby"

// Conninfo returns the primary_conninfo of a standby on this machine.
func (p *Postgres) Conninfo() string {
	at := p.currentAddress()
	if at.socketDir != "" {
		return conninfo(at.socketDir, strconv.Itoa(at.port))
	}
	return conninfo("127.0.0.1", strconv.Itoa(at.port)) + " password=" + at.password
}

// ConninfoThrough is [Postgres.Conninfo] through another address that leads to the cluster.
func ConninfoThrough(addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	return conninfo(host, port), err
}

func conninfo(host, port string) string {
	return fmt.Sprintf("host='%s' port=%s user=%s application_name=%s", host, port, superuser, standbyName)
}

// StartStandby copies the running cluster into config.DataDir, which must have none, and starts a streaming standby
// there, connected by conninfo. Settings not given come from the copy.
func (p *Postgres) StartStandby(ctx context.Context, config PostgresConfig, conninfo string) (*Postgres, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	config.Settings = maps.Clone(config.Settings)
	if config.Settings == nil {
		config.Settings = map[string]string{}
	}
	config.Settings["primary_conninfo"] = conninfo
	l := newLayout(config.DataDir)
	if err := p.Backup(ctx, l.cluster); err != nil {
		return nil, err
	}
	signal := filepath.Join(l.cluster, "standby.signal")
	if err := errors.Join(os.WriteFile(signal, nil, 0o600), p.owner.give(signal)); err != nil {
		return nil, fmt.Errorf("make a standby of %s: %w", p.layout.cluster, err)
	}
	if err := newLayout(config.DataDir).writePassword(p.owner); err != nil {
		return nil, fmt.Errorf("make a standby of %s: %w", p.layout.cluster, err)
	}
	standby, err := StartPostgres(ctx, config)
	if err != nil {
		return nil, err
	}
	err = p.await(ctx, `SELECT count(*) > 0 FROM pg_stat_replication WHERE state = 'streaming'`)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("wait for the standby to follow: %w", err), standby.Stop(ctx))
	}
	return standby, nil
}

// Synchronous makes the cluster confirm commits only after its standby has written them.
func (p *Postgres) Synchronous(ctx context.Context) error {
	err := p.exec(ctx, `ALTER SYSTEM SET synchronous_standby_names = '`+standbyName+`'`, `SELECT pg_reload_conf()`)
	if err == nil {
		err = p.await(ctx, `SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'`)
	}
	if err != nil {
		return fmt.Errorf("replicate synchronously: %w", err)
	}
	return nil
}

// Promote makes a standby an independent cluster, on a new timeline, and returns when it accepts writes.
func (p *Postgres) Promote(ctx context.Context) error {
	err := p.exec(ctx, `SELECT pg_promote(true, 60)`)
	if err == nil {
		err = p.await(ctx, `SELECT NOT pg_is_in_recovery()`)
	}
	if err != nil {
		return fmt.Errorf("promote the standby in %s: %w", p.layout.cluster, err)
	}
	return nil
}

// Backup copies the running cluster into dir, owned by the server's user.
func (p *Postgres) Backup(ctx context.Context, dir string) error {
	if err := makeDir(filepath.Dir(dir)); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, p.install.program("pg_basebackup"), "--dbname="+p.URLFor("postgres"), "--pgdata="+dir,
		"--wal-method=stream", "--checkpoint=fast", "--no-sync")
	cmd.Env = serverEnv()
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return &ServerError{Program: "pg_basebackup", Tail: strings.TrimSpace(said.String()), Err: err}
	}
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, p.owner.give(path))
	})
	if err != nil {
		return fmt.Errorf("copy cluster %s: %w", p.layout.cluster, err)
	}
	return nil
}

// Kill ends the server like a machine crash and releases the directory: nothing is written, no client is notified,
// and it is not restarted.
func (p *Postgres) Kill(ctx context.Context) error {
	children, err := p.children(ctx)
	if err != nil {
		return fmt.Errorf("kill PostgreSQL: %w", err)
	}
	p.stop.Do(func() {
		p.quit()
		<-p.watched
		// The server first, or it sees its children die and restarts them. They may have ended by their turn.
		for _, pid := range append([]int{p.PID()}, children...) {
			if err := kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				p.stopErr = errors.Join(p.stopErr, fmt.Errorf("kill PostgreSQL: %w", err))
			}
		}
		<-p.proc.exited
		p.stopErr = errors.Join(p.stopErr, p.lock.release())
	})
	return p.stopErr
}

// children returns the PIDs of the server's processes. Orphaned, they would serve their clients to the end of the
// statement.
func (p *Postgres) children(ctx context.Context) (pids []int, err error) {
	err = connect(ctx, p.URLFor("postgres"), func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT pid FROM pg_stat_activity`)
		if err == nil {
			pids, err = pgx.CollectRows(rows, pgx.RowTo[int])
		}
		return err
	})
	return pids, err
}

func (p *Postgres) exec(ctx context.Context, statements ...string) error {
	return connect(ctx, p.URLFor("postgres"), func(conn *pgx.Conn) error {
		for _, sql := range statements {
			if _, err := conn.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *Postgres) await(ctx context.Context, sql string) error {
	return connect(ctx, p.URLFor("postgres"), func(conn *pgx.Conn) error {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			var met bool
			if err := conn.QueryRow(ctx, sql).Scan(&met); err != nil || met {
				return err
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
}
