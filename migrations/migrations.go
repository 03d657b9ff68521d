// Package migrations holds the database schema of Tranche as numbered SQL files, and applies them.
//
// [Up] brings a database to the newest version this binary knows. Any number of processes may call it at once: they
// take turns under an advisory lock, and those who come late find nothing to do. Each file runs in a
// transaction of its own, so that a file that fails leaves no trace; those that build indexes beside the work of nodes
// cannot, and may be run again wherever they were interrupted. [Pending] and [Ready] only read and need no right to
// change the schema. A database that is newer than the binary is left as it is; one that was made before the files had
// their present numbers is refused ([FormerSchemaError]).
//
// [Grant] lets another role than the owner serve, one that can change neither the schema nor the audit log.
//
// The lock takes a second connection for as long as something is applied: a session of its own or, since a URL may lead
// through a pooler that hands out connections per transaction, a transaction that reads committed. What is waited for
// longer than 5 s is logged, with who holds it.
//
// A released file is never edited; a change is a new file. The package keeps no state.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
	"go.uber.org/zap"
)

const (
	// versionTable is ours alone, so that a database shared with another user of goose keeps the two apart.
	versionTable = "tranche_migration"
	// lockID is the key of the advisory lock: the bytes of "tranche".
	lockID = 0x7472616e636865

	// lockPause is how long a process that finds another one at it waits before it looks again, and lockTimeout for how
	// long it does.
	lockPause   = time.Second
	lockTimeout = 5 * time.Minute
	// saidFirst is how long something is waited for before the log says so, saidLongest the longest pause, doubled from
	// one time to the next, until it says so again.
	saidFirst   = 5 * time.Second
	saidLongest = 5 * time.Minute

	minServerVersion = 140000

	// connectTimeout is how long an address may take to make a connection, unless the URL says so.
	connectTimeout = 5 * time.Second
	// lookTimeout bounds a look at what the database has: a server that has gone silent would hold it indefinitely. What
	// is applied may take as long as it needs.
	lookTimeout = 30 * time.Second
)

// Files are the migrations, in the order of their names.
//
//go:embed *.sql
var Files embed.FS

// ServerTooOldError is returned for a PostgreSQL that lacks what the schema needs.
type ServerTooOldError struct {
	Version string // as the server says it, like "13.4"
}

func (e *ServerTooOldError) Error() string {
	return fmt.Sprintf("the PostgreSQL server is version %s; Tranche needs 14 or newer", e.Version)
}

// Up applies what is missing in the database at url (a URL or a key=value string) and returns the names of the files
// it applied, in order; none when the database is up to date. After an error, applied still names what was done before
// it. It waits up to five minutes for another process that is migrating the same database. A nil log is silent.
func Up(ctx context.Context, url string, log *zap.Logger) (applied []string, err error) {
	if log == nil {
		log = zap.NewNop()
	}
	db, err := open(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()

	// Looked at first so that a role without the right to change the schema can start on a migrated database.
	missing, err := pending(ctx, db)
	if err == nil && len(missing) == 0 {
		err = recordAnew(ctx, db, log)
	}
	if err != nil || len(missing) == 0 {
		return nil, err
	}
	if err := mayMigrate(ctx, db, missing); err != nil {
		return nil, err
	}
	provider, err := newProvider(db)
	if err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	var results []*goose.MigrationResult
	err = alone(ctx, db, log, func() (err error) {
		if results, err = provider.Up(ctx); err == nil {
			err = record(ctx, db)
		}
		return err
	})
	if partial, ok := errors.AsType[*goose.PartialError](err); ok {
		results = partial.Applied
		err = fmt.Errorf("apply %s: %w", path.Base(partial.Failed.Source.Path), partial.Err)
	}
	for _, r := range results {
		name := path.Base(r.Source.Path)
		applied = append(applied, name)
		log.Info("migration applied", zap.String("file", name), zap.Duration("took", r.Duration))
	}
	if err != nil {
		return applied, fmt.Errorf("migrate: %w", err)
	}
	return applied, nil
}

// Pending returns the names of the files that [Up] would apply to the database at url, in order. It changes nothing and
// takes no lock.
func Pending(ctx context.Context, url string) (names []string, err error) {
	db, err := open(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("look for pending migrations: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return pending(ctx, db)
}

func pending(ctx context.Context, db *sql.DB) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	provider, err := newProvider(db)
	if err != nil {
		return nil, fmt.Errorf("look for pending migrations: %w", err)
	}
	done, err := versions(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("look for pending migrations: %w", err)
	}
	if err := checkLineage(ctx, db, done); err != nil {
		return nil, err
	}
	var names []string
	for _, source := range provider.ListSources() {
		if !slices.Contains(done, source.Version) {
			names = append(names, path.Base(source.Path))
		}
	}
	return names, nil
}

const tableExists = `
SELECT to_regclass($1) IS NOT NULL, coalesce(has_table_privilege(to_regclass($1), 'SELECT'), false), current_user`

// versions returns the versions the database has. The provider's own look at them would create the table.
func versions(ctx context.Context, db *sql.DB) ([]int64, error) {
	var exists, readable bool
	var role string
	err := db.QueryRowContext(ctx, tableExists, versionTable).Scan(&exists, &readable, &role)
	if err != nil || !exists {
		return nil, err
	}
	if !readable {
		return nil, &NotReadyError{Role: role, Rights: []string{"select " + versionTable}}
	}
	store, err := database.NewStore(database.DialectPostgres, versionTable)
	if err != nil {
		return nil, err
	}
	rows, err := store.ListMigrations(ctx, db)
	if err != nil {
		return nil, err
	}
	var done []int64
	for _, row := range rows {
		if row.IsApplied {
			done = append(done, row.Version)
		}
	}
	return done, nil
}

func newProvider(db *sql.DB) (*goose.Provider, error) {
	return goose.NewProvider(goose.DialectPostgres, db, Files,
		goose.WithTableName(versionTable),
		goose.WithDisableGlobalRegistry(true))
}

// open connects, and refuses a server that is too old before anything is tried on it.
func open(ctx context.Context, url string) (*sql.DB, error) {
	config, err := pgxpool.ParseConfig(url) // which keeps settings of pools from the server
	if err != nil {
		return nil, err // pgx leaves the password out
	}
	if config.ConnConfig.ConnectTimeout <= 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	// It leaves nothing behind: no prepared statement on a connection that a pooler hands to someone else next, and no
	// portal, whose snapshot would stay in the transaction of [alone].
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	config.ConnConfig.RuntimeParams["application_name"] = applicationName // [blockers] finds our sessions by it
	db := stdlib.OpenDB(*config.ConnConfig)
	if err := checkVersion(ctx, db); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

func checkVersion(ctx context.Context, db *sql.DB) (err error) {
	conn, err := db.Conn(ctx) // each address has a time of its own, so that there may be any number of them
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }() // back to db, which uses it again
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	var number int
	var version string
	err = conn.QueryRowContext(ctx, serverVersion).Scan(&number, &version)
	if err == nil && number < minServerVersion {
		err = &ServerTooOldError{Version: version}
	}
	return err
}

const serverVersion = `SELECT current_setting('server_version_num')::integer, current_setting('server_version')`
