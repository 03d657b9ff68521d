package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/startup"
	"github.com/tranchehq/tranche/migrations"
	"github.com/tranchehq/tranche/workqueue/database"
)

// openDatabase opens the store, on a private PostgreSQL or the one that was named.
func (s *serveCommand) openDatabase(ctx context.Context, p *parts, log *zap.Logger) error {
	url := s.Database
	if url == "" {
		private, err := embedded.StartPostgres(ctx, embedded.PostgresConfig{
			DataDir: filepath.Join(p.directory, "postgres"), Bound: true, Log: log.Named("postgres"),
		})
		if err != nil {
			return fmt.Errorf("start a private PostgreSQL (or use one with --database): %w", err)
		}
		p.undo = append(p.undo, private.Stop)
		url = private.URL()
	}
	if err := startup.CheckScheme("--database", strings.Split(url, ",")[0], "postgres", "postgresql"); err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return fmt.Errorf("--database: %w", err)
	}
	p.database = fmt.Sprintf("%s:%d/%s", config.ConnConfig.Host, config.ConnConfig.Port, config.ConnConfig.Database)
	wait := startup.DatabaseWait{At: p.database, Patience: s.DatabaseWait, Log: log}
	err = wait.Until(ctx, func(ctx context.Context) error {
		if err := wait.Knock(ctx, config.ConnConfig); err != nil {
			return database.PoolerRemedy(err)
		}
		return database.PoolerRemedy(s.openStore(ctx, p, url, config, log))
	})
	if err != nil {
		return fmt.Errorf("database %s: %w", p.database, startup.DatabaseRemedy(err))
	}
	return nil
}

// openStore brings the schema up to date and opens the store. It may be tried again after an error.
func (s *serveCommand) openStore(
	ctx context.Context, p *parts, url string, config *pgxpool.Config, log *zap.Logger,
) error {
	if !s.NoMigrate {
		if _, err := migrations.Up(ctx, url, log); err != nil {
			return err
		}
	}
	if err := migrations.Ready(ctx, url); err != nil {
		return err
	}
	conns := s.MaxConnections
	if conns == 0 && strings.Contains(url, "pool_max_conns") {
		conns = int(config.MaxConns)
	}
	store, release, err := database.Open(ctx, url, database.PoolConfig{
		MaxConns: conns, ThroughPooler: s.ThroughPooler, Serving: true,
	})
	if err != nil {
		return err
	}
	p.store = store
	p.undo = append(p.undo, func(context.Context) error { release(); return nil })
	return nil
}
