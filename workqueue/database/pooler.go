package database

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// backendPID is asked in a transaction: a pooler that hands out connections per statement refuses that.
const backendPID = `SELECT pg_backend_pid(), current_setting('default_transaction_isolation') <> 'read committed'`

// pooled reports whether somebody who hands out connections stands between us and PostgreSQL. The process that a client
// is told of, for what it may want to cancel, is PostgreSQL's own then only by chance: a pooler makes it up. A pooler
// by session counts as well; what is fit for the one by transaction works with it. otherIsolation is whether statements
// of ours would not read what is committed, unless they say so.
func pooled(ctx context.Context, url string) (behind, otherIsolation bool, err error) {
	cfg, err := pgxpool.ParseConfig(url) // which keeps settings of pools from the server
	if err != nil {
		return false, false, err
	}
	cfg.ConnConfig.ConnectTimeout = connectTimeout
	forTransactions(cfg.ConnConfig.RuntimeParams)
	conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	if err != nil {
		return false, false, PoolerRemedy(err)
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	ctx, cancel := context.WithTimeout(ctx, firstAnswer)
	defer cancel()
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		var pid uint32
		err := tx.QueryRow(ctx, backendPID, pgx.QueryExecModeSimpleProtocol).Scan(&pid, &otherIsolation)
		behind = pid != conn.PgConn().PID()
		return err
	})
	return behind, otherIsolation, PoolerRemedy(err)
}

// forTransactions takes from the parameters of a connection what a pooler would not hand on, and returns it.
func forTransactions(params map[string]string) map[string]string {
	taken := map[string]string{}
	for name := range (PoolConfig{}).settings() {
		if value, given := params[name]; given {
			taken[name] = value
			delete(params, name)
		}
	}
	return taken
}

// transactionSettings returns the statement that follows the BEGIN of each transaction, in the same flush. Whoever gets
// a pooler's connection next would have the settings of a session. What the URL says goes before our own. Its argument
// is when nobody waits any more ([pg.Until]): what a client gives up, a pooler may not get cancelled.
func (c PoolConfig) transactionSettings(url string) string {
	all := c.settings()
	if cfg, err := pgxpool.ParseConfig(url); err == nil { // as it was when the pool was made of it
		maps.Copy(all, forTransactions(cfg.ConnConfig.RuntimeParams))
	}
	delete(all, "default_transaction_isolation") // a transaction has begun by then: see [pg.Begin]
	set := []string{
		"set_config('statement_timeout', coalesce(nullif(current_setting('statement_timeout'), '0'), $1), true)",
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		set = append(set, "set_config('"+name+"', '"+strings.ReplaceAll(all[name], "'", "''")+"', true)")
	}
	return "SELECT " + strings.Join(set, ", ")
}

// PoolerRemedy adds to an error what to do when it says that a pooler stands in between that is not set up for us, or
// was not recognised as one. Other errors are returned as they are.
func PoolerRemedy(err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	switch {
	case strings.Contains(pg.Message, "statement pooling"):
		return fmt.Errorf("the pooler hands out connections by statement, and a run needs transactions; set pool_mode to "+
			"transaction or session: %w", err)
	case strings.Contains(pg.Message, "unsupported startup parameter"):
		return fmt.Errorf("the pooler refuses a parameter of the connection; let it pass, by "+
			"ignore_startup_parameters = lock_timeout,idle_in_transaction_session_timeout and the one that it names: %w", err)
	case pg.Code == "42P05", pg.Code == "26000" && strings.Contains(pg.Message, "prepared statement"):
		return fmt.Errorf("a pooler by transaction seems to stand in between; say so by --through-pooler: %w", err)
	}
	return err
}
