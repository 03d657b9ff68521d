// Package migrations holds the database schema of Tranche as numbered SQL files, and applies them.
//
// [Up] migrates a database to the newest version known to this binary. It may run in any number of processes
// concurrently: an advisory lock runs them one at a time, and the rest find nothing to do. Each file runs in its own
// transaction, so a file that fails has no effect. Files that build indexes concurrently cannot, but may be rerun
// after an interruption. [Pending] and [Ready] only read, and need no right to change the schema. A database newer
// than the binary stays unchanged; one from before the files had their current numbers is refused
// ([FormerSchemaError]).
//
// [Grant] lets a role other than the owner serve, which can change neither the schema nor the audit log.
//
// While migrations run, the lock needs a second connection. It is held by a session or, behind a transaction pooler,
// by a read-committed transaction. Waits longer than 5 s are logged with the lock's holders.
//
// A released file is never edited; a change is a new file. The package keeps no state.
package migrations

import (
	"cmp"
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
	// versionTable is not goose's default, to be separate from other users of goose in the same database.
	versionTable = "tranche_migration"
	// lockID is the key of the advisory lock: the bytes of "tranche".
	lockID = 0x7472616e636865

	// lockPause is the time between attempts to get the lock, until lockTimeout.
	lockPause   = time.Second
	lockTimeout = 5 * time.Minute
	// saidFirst is the wait after which it is first logged; then the pause doubles up to saidLongest.
	saidFirst   = 5 * time.Second
	saidLongest = 5 * time.Minute

	minServerVersion = 140000

	// connectTimeout limits the connection to one address, by default.
	connectTimeout = 5 * time.Second
	// lookTimeout limits queries, so that a silent server does not block indefinitely. Migrations have no time limit.
	lookTimeout = 30 * time.Second
)

// Files are the migrations, in the order of their names.
//
//go:embed *.sql
var Files embed.FS

// Up applies the missing migrations to the database at url (a URL or a key=value string) and returns the names of the
// applied files, in order, also after an error. It waits up to five minutes for another process that is migrating the
// same database. A nil log is silent.
func Up(ctx context.Context, url string, log *zap.Logger) (applied []string, err error) {
	log = cmp.Or(log, zap.NewNop())
	db, err := open(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()

	// Checked first, so that a role without the right to change the schema can start on a migrated database.
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

// Pending returns the names of the files that [Up] would apply, in order. It only reads, and takes no lock.
func Pending(ctx context.Context, url string) (names []string, err error) {
	db, err := open(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("find pending migrations: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return pending(ctx, db)
}

func pending(ctx context.Context, db *sql.DB) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	provider, err := newProvider(db)
	if err != nil {
		return nil, fmt.Errorf("find pending migrations: %w", err)
	}
	done, err := versions(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("find pending migrations: %w", err)
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

// versions returns the versions of the database. The provider's own query would create the table.
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

// open connects, and refuses a server that is too old.
func open(ctx context.Context, url string) (*sql.DB, error) {
	config, err := pgxpool.ParseConfig(url) // which does not send pool settings to the server
	if err != nil {
		return nil, err // pgx omits the password
	}
	if config.ConnConfig.ConnectTimeout <= 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	// It leaves no prepared statement on a connection that a pooler hands to another client, and no portal, whose
	// snapshot would stay in the transaction of [alone].
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	config.ConnConfig.RuntimeParams["application_name"] = applicationName // [blockers] finds our sessions by it
	db := stdlib.OpenDB(*config.ConnConfig)
	if err := checkVersion(ctx, db); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

func checkVersion(ctx context.Context, db *sql.DB) (err error) {
	conn, err := db.Conn(ctx) // each address has its own timeout, so any number may be given
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }() // back to db, which reuses it
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	var number int
	var version string
	err = conn.QueryRowContext(ctx, serverVersion).Scan(&number, &version)
	if err == nil && number < minServerVersion {
		err = fmt.Errorf("the PostgreSQL server is version %s; Tranche needs 14 or newer", version)
	}
	return err
}

const serverVersion = `SELECT current_setting('server_version_num')::integer, current_setting('server_version')`
