package testenv

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/migrations"
)

// shared is the test binary's server. It is the one thing here that tests share, because to start it costs a second.
var shared sharedServer

type sharedServer struct {
	once     sync.Once
	err      error
	cluster  *embedded.Postgres // nil when the server is someone else's
	dir      string
	admin    *pgxpool.Pool
	base     string // a URL of the server, of any database
	template string
	copying  string // how a template is copied
	serving  string // the role that serves in clones of the template, and its password
}

// open starts the server and makes the template, once.
func (s *sharedServer) open() error {
	s.once.Do(func() { s.err = s.start(context.Background()) })
	return s.err
}

func (s *sharedServer) start(ctx context.Context) (err error) {
	if s.base = os.Getenv(databaseVariable); s.base == "" {
		if s.dir, err = clusterDir(); err != nil {
			return err
		}
		if err := newCluster(ctx, s.dir); err != nil {
			return err
		}
		s.cluster, err = embedded.StartPostgres(ctx, embedded.PostgresConfig{
			DataDir: s.dir, Settings: reckless, NoRestart: true, Bound: true,
		})
		if err != nil {
			return err
		}
		s.base, s.template = s.cluster.URLFor("postgres"), embedded.DefaultDatabase
	}
	if s.admin, err = pgxpool.New(ctx, s.base); err != nil {
		return fmt.Errorf("connect to the test server: %w", err)
	}
	if err := s.checkVersion(ctx); err != nil {
		return err
	}
	if s.cluster == nil {
		if err := s.makeTemplate(ctx); err != nil {
			return err
		}
	}
	url, err := withDatabase(s.base, s.template)
	if err != nil {
		return err
	}
	s.serving = "tranche_serving_" + suffix()
	if _, err := s.admin.Exec(ctx, "CREATE ROLE "+s.serving+" LOGIN PASSWORD '"+s.serving+"'"); err != nil {
		return fmt.Errorf("create role %s: %w", s.serving, err)
	}
	return grantServing(ctx, url, s.serving)
}

func (s *sharedServer) makeTemplate(ctx context.Context) error {
	s.template = "tranche_template_" + suffix()
	if err := s.create(ctx, s.template, emptyTemplate); err != nil {
		return err
	}
	url, err := withDatabase(s.base, s.template)
	if err != nil {
		return err
	}
	_, err = migrations.Up(ctx, url, nil)
	return err
}

// checkVersion refuses a server that is not of the version that was asked for: a test would show nothing of that.
func (s *sharedServer) checkVersion(ctx context.Context) error {
	want := os.Getenv(versionVariable)
	var is string
	err := s.admin.QueryRow(ctx, `SELECT (current_setting('server_version_num')::integer / 10000)::text`).Scan(&is)
	if is != "14" { // which knows no other way
		s.copying = " STRATEGY file_copy" // without durability it is the cheaper one
	}
	if err == nil && want != "" && want != is {
		err = fmt.Errorf("%s is %s, and the server is of version %s; run: make test PG=%s", versionVariable, want, is, want)
	}
	return err
}

// reckless settings are for data that no one needs after a crash.
var reckless = map[string]string{
	"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "autovacuum_naptime": "10s",
	"max_connections": "400", "shared_buffers": "64MB", "wal_level": "minimal", "max_wal_senders": "0",
	"jit": "off", // as nodes have it: it compiles for longer than what it compiles runs
}

// clusterDir is short, because the path of a socket may not be long.
func clusterDir() (string, error) {
	sweep()
	dir, err := os.MkdirTemp(scratch(), dirPattern)
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o711) // another user runs the server when we are root
}

func (s *sharedServer) clone(ctx context.Context, template func(*sharedServer) string) (name, url string, err error) {
	if err := s.open(); err != nil {
		return "", "", err
	}
	name = "tranche_test_" + suffix()
	if err := s.create(ctx, name, template(s)); err != nil {
		return "", "", err
	}
	url, err = withDatabase(s.base, name)
	return name, url, err
}

func (s *sharedServer) create(ctx context.Context, name, template string) error {
	err := s.alone(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+
		" TEMPLATE "+pgx.Identifier{template}.Sanitize()+s.copying)
	if err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

func (s *sharedServer) drop(ctx context.Context, name string) error {
	return s.alone(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
}

// alone runs a statement that needs a database for itself. PostgreSQL ends who is there, or waits for their end, and
// gives up after 5 s; a busy machine may need longer.
func (s *sharedServer) alone(ctx context.Context, sql string) error {
	for begun := time.Now(); ; {
		_, err := s.admin.Exec(ctx, sql)
		said, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || said.Code != objectInUse || time.Since(begun) > stopTimeout {
			return err
		}
	}
}

const objectInUse = "55006"

func (s *sharedServer) dropRole(ctx context.Context) error {
	if s.serving == "" {
		return nil
	}
	_, err := s.admin.Exec(ctx, "DROP ROLE "+s.serving)
	return err
}

// stop undoes open, as far as that got.
func (s *sharedServer) stop(ctx context.Context) error {
	var err error
	if s.admin != nil {
		if s.cluster == nil {
			err = errors.Join(s.drop(ctx, s.template), s.dropRole(ctx))
		}
		s.admin.Close()
	}
	if s.cluster != nil {
		err = errors.Join(err, s.cluster.Stop(ctx))
	}
	if s.dir != "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	return err
}

func withDatabase(base, name string) (string, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme == "" {
		return "", fmt.Errorf("%s is not a URL like postgres://user@host/database", databaseVariable)
	}
	u.Path = "/" + name
	if q := u.Query(); !q.Has("connect_timeout") {
		q.Set("connect_timeout", "60") // where migrations would say 5
		u.RawQuery = q.Encode()
	}
	return u.String(), nil
}

// suffix keeps test binaries on one server apart.
func suffix() string { return strings.ToLower(rand.Text()[:12]) }
