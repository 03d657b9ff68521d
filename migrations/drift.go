package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
)

const (
	// schemaNow lists the parts of our tables ($1) and functions ($2), by names independent of PostgreSQL's version.
	schemaNow = `
WITH ours AS (
    SELECT c.oid, c.relname FROM pg_class c
    WHERE c.relkind IN ('r', 'p')
        AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'audit_log'::regclass)
        AND (c.relname = ANY (string_to_array($1, ',')) OR EXISTS (
            SELECT FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhparent
            WHERE i.inhrelid = c.oid AND p.relname = ANY (string_to_array($1, ',')))))
SELECT 'column ' || o.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
    || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END AS object
FROM ours o JOIN pg_attribute a ON a.attrelid = o.oid WHERE a.attnum > 0 AND NOT a.attisdropped
UNION ALL SELECT 'constraint ' || c.conname || ' of ' || o.relname
FROM ours o JOIN pg_constraint c ON c.conrelid = o.oid WHERE c.contype IN ('c', 'f', 'p', 'u', 'x')
UNION ALL SELECT 'index ' || i.relname || ' of ' || o.relname
FROM ours o JOIN pg_index x ON x.indrelid = o.oid JOIN pg_class i ON i.oid = x.indexrelid WHERE x.indisvalid
UNION ALL SELECT 'trigger ' || t.tgname || ' of ' || o.relname
FROM ours o JOIN pg_trigger t ON t.tgrelid = o.oid WHERE NOT t.tgisinternal AND t.tgenabled <> 'D'
UNION ALL SELECT 'function ' || p.proname || ' ' || md5(p.prosrc)
FROM pg_proc p WHERE p.proname = ANY (string_to_array($2, ','))
    AND p.pronamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'audit_log'::regclass)`

	forgetSchema = `DELETE FROM schema_object`
	recordSchema = `
INSERT INTO schema_object (object) SELECT DISTINCT object FROM (` + schemaNow + `) now UNION ALL SELECT ` + versionNow

	// The record names the migration it was made after, since it has its own transaction: a process may end before it.
	versionNow = `'version ' || (SELECT max(version_id) FROM tranche_migration WHERE is_applied)`
	unrecorded = `
SELECT NOT EXISTS (SELECT FROM schema_object WHERE object = ` + versionNow + `)
    AND has_table_privilege('schema_object', 'INSERT')`

	// schemaDrift omits added indexes: they only affect speed.
	schemaDrift = `
WITH now AS MATERIALIZED (` + schemaNow + `)
SELECT said FROM (
    SELECT 'lacks the ' || object AS said
    FROM (SELECT object FROM schema_object WHERE object NOT LIKE 'version %' EXCEPT SELECT object FROM now) gone
    UNION ALL SELECT 'has the ' || object || ', which no migration made'
    FROM (SELECT object FROM now EXCEPT SELECT object FROM schema_object) new WHERE object NOT LIKE 'index %') drift
WHERE EXISTS (SELECT FROM schema_object WHERE object = ` + versionNow + `)
ORDER BY 1`

	newerVersions = `SELECT version_id FROM tranche_migration WHERE version_id > $1 AND is_applied ORDER BY 1`
)

// madeFunction matches functions made by a migration. A test may replace tranche_now with another clock.
var madeFunction = regexp.MustCompile(`(?m)^CREATE (?:OR REPLACE )?FUNCTION (\w+)`)

// record saves the current schema, for Drift to compare with.
func record(ctx context.Context, db *sql.DB) (err error) {
	tables, functions, err := ours()
	if err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err = tx.ExecContext(ctx, forgetSchema); err == nil {
		_, err = tx.ExecContext(ctx, recordSchema, tables, functions)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("record the schema: %w", err), tx.Rollback())
	}
	return tx.Commit()
}

// recordAnew records the schema if a process ended right after its migrations.
func recordAnew(ctx context.Context, db *sql.DB, log *zap.Logger) error {
	var missing bool
	if err := db.QueryRowContext(ctx, unrecorded).Scan(&missing); err != nil || !missing {
		return err
	}
	return alone(ctx, db, log, func() error { return record(ctx, db) })
}

// Querier is a connection, a pool or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Drift returns how a schema differs from what this program's migrations made, or only that it is newer: such a schema
// still suits the previous version of the program.
func Drift(ctx context.Context, db Querier) (all []string, newer bool, err error) {
	entries, err := Files.ReadDir(".")
	if err != nil {
		return nil, false, err
	}
	rows, _ := db.Query(ctx, newerVersions, len(entries)) // CollectRows returns the error
	unknown, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, false, fmt.Errorf("check whether the schema is newer: %w", err)
	}
	if len(unknown) > 0 {
		return []string{fmt.Sprintf("is newer than this program: it has migration %05d, this program's last is "+
			"%05d; only the previous version is supported, so upgrade this program soon",
			unknown[len(unknown)-1], len(entries))}, true, nil
	}
	tables, functions, err := ours()
	if err != nil {
		return nil, false, err
	}
	rows, _ = db.Query(ctx, schemaDrift, tables, functions)
	if all, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		return nil, false, fmt.Errorf("compare the schema with what migrations made: %w", err)
	}
	return all, false, nil
}

// Notes returns what an operator should know: the schema's drift, and roles with too few rights on statistics.
func Notes(ctx context.Context, url string, roles ...string) (all []string, err error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // which poolers support
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	drift, _, err := Drift(ctx, pool)
	for _, differs := range drift {
		all = append(all, "the schema "+differs)
	}
	for _, role := range roles {
		name, hidden, failed := StatsHidden(ctx, pool, role)
		if err = errors.Join(err, failed); hidden {
			all = append(all, StatsRemedy(name))
		}
	}
	return all, err
}

func ours() (ofTables, ofFunctions string, err error) {
	names, err := tables()
	if err != nil {
		return "", "", err
	}
	functions, err := allMade(madeFunction)
	functions = slices.DeleteFunc(functions, func(name string) bool { return name == "tranche_now" })
	return strings.Join(names, ","), strings.Join(functions, ","), err
}
