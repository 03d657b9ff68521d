package migrations_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const foundation = "00001_foundation.sql"

func pending(t *testing.T, url string) []string {
	t.Helper()
	return testenv.Must(migrations.Pending(t.Context(), url))(t)
}

func TestUpAppliesWhatIsPendingOnce(t *testing.T) {
	t.Parallel()
	url := testenv.EmptyDatabase(t)
	before := pending(t, url)
	if !slices.Contains(before, foundation) {
		t.Fatalf("pending before: %v", before)
	}
	testenv.SameList(t, testenv.Must(migrations.Up(t.Context(), url, nil))(t), before, "applied")
	testenv.Same(t, len(pending(t, url)), 0, "pending after")
	again := testenv.Must(migrations.Up(t.Context(), url, nil))(t)
	testenv.Same(t, len(again), 0, "the second time applied")
}

func TestUpByManyAtOnce(t *testing.T) {
	t.Parallel()
	url := testenv.EmptyDatabase(t)
	want := pending(t, url)
	var mu sync.Mutex
	var all []string
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			applied, err := migrations.Up(t.Context(), url, nil)
			testenv.Same(t, err, nil, "a migration")
			mu.Lock()
			defer mu.Unlock()
			all = append(all, applied...)
		})
	}
	running.Wait()
	slices.Sort(all)
	testenv.SameList(t, all, want, "together they applied")
}

// Whatever isolation the database has for those who name none, an index that is built beside the work of others does
// not wait for the lock of the migration that builds it.
func TestUpWhateverTheIsolation(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			url := testenv.EmptyDatabase(t)
			isolate(t, testenv.Connect(t, url), isolation)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			if applied, err := migrations.Up(ctx, url, nil); err != nil || len(applied) < 10 {
				t.Errorf("applied %v, %v", applied, err)
			}
		})
	}
}

// isolate sets what transactions of a database run by that name no isolation.
func isolate(t *testing.T, conn *pgxpool.Pool, isolation string) {
	t.Helper()
	testenv.Must(conn.Exec(t.Context(), `DO $$ BEGIN EXECUTE format(
		'ALTER DATABASE %I SET default_transaction_isolation = "`+isolation+`"', current_database()); END $$`))(t)
}

// What migrations wait for longer than some seconds they say, with who holds it, and then continue.
func TestUpSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ hold, says string }{
		"another migration": {`SELECT pg_advisory_xact_lock(x'7472616e636865'::bigint)`, "migrates this database: process"},
		"an old snapshot":   {`SELECT 1 FROM pg_class`, "the end of a transaction, of process"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.EmptyDatabase(t)
			tx := testenv.Must(testenv.Connect(t, url).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead}))(t)
			defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
			testenv.Must(tx.Exec(t.Context(), c.hold))(t)
			core, logs := observer.New(zap.WarnLevel)
			up := testenv.Begin(t, func() ([]string, error) { return migrations.Up(t.Context(), url, zap.New(core)) })
			holder := fmt.Sprintf("%s %d (", c.says, tx.Conn().PgConn().PID())
			testenv.Until(t, time.Minute, "it says what it waits for", func() bool {
				return slices.ContainsFunc(logs.All(), func(e observer.LoggedEntry) bool {
					return strings.Contains(e.Message, holder)
				})
			})
			testenv.NoError(t, tx.Commit(t.Context()))
			up()
		})
	}
}

func TestUpNeedsNoRightsWhenThereIsNothingToDo(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	// A predefined role has no right to make anything.
	const role = "pg_read_all_data"
	// The options of a connection stand in its URL.
	separator := "?"
	if strings.Contains(url, "?") {
		separator = "&"
	}
	applied := testenv.Must(migrations.Up(t.Context(), url+separator+"role="+role, nil))(t)
	testenv.Same(t, len(applied), 0, "applied")
}

func TestUpNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	url := testenv.EmptyDatabase(t)
	testenv.Must(testenv.Connect(t, url).Exec(t.Context(), `CREATE TABLE quarantine ()`))(t)
	applied, err := migrations.Up(t.Context(), url, nil)
	if err == nil || !strings.Contains(err.Error(), foundation) || !strings.Contains(err.Error(), "quarantine") {
		t.Fatalf("got %v, want the file and the table named", err)
	}
	if len(applied) != 0 || !slices.Contains(pending(t, url), foundation) {
		t.Errorf("a file that failed counts as applied: %v", applied)
	}
	for _, bad := range []string{"postgres://%zz", "postgres://nobody:canary@127.0.0.1:1/x?connect_timeout=2"} {
		if _, err := migrations.Up(t.Context(), bad, nil); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// Numbers that are applied say nothing when they are those of other files.
func TestADatabaseOfFormerFilesIsRefused(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	testenv.Must(testenv.Connect(t, url).Exec(t.Context(), `DROP VIEW run_item CASCADE;
		INSERT INTO tranche_migration (version_id, is_applied) VALUES (999, true)`))(t)
	_, up := migrations.Up(t.Context(), url, nil)
	_, pending := migrations.Pending(t.Context(), url)
	for name, err := range map[string]error{
		"up": up, "pending": pending, "ready": migrations.Ready(t.Context(), url),
		"grant": migrations.Grant(t.Context(), url, "anybody"),
	} {
		testenv.Same(t, testenv.As[*migrations.FormerSchemaError](t, err, "%s", name).Newest, 999, "%s: the newest", name)
		testenv.Says(t, err, "make the database again", "%s", name)
	}
}

// Each migration can be undone, down to nothing, and applied again.
func TestAllTheWayBackAndUpAgain(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	conn := testenv.Connect(t, url)
	files := testenv.Must(filepath.Glob("*.sql"))(t)
	for _, file := range slices.Backward(files) {
		down := strings.ReplaceAll(wayBack(t, file), "CONCURRENTLY", "") // several statements are one transaction
		_, err := conn.Exec(t.Context(), down)
		testenv.MustSame(t, err, nil, "take %s back", file)
	}
	testenv.Same(t, testenv.Number(t, conn, `SELECT (SELECT count(*) FROM pg_class
		WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v') AND relname <> 'tranche_migration')
		+ (SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace)`), 0,
		"tables, views and functions are left")
	testenv.Must(conn.Exec(t.Context(), `DELETE FROM tranche_migration WHERE version_id > 0`))(t)
	testenv.Same(t, len(testenv.Must(migrations.Up(t.Context(), url, nil))(t)), len(files), "applied")
}

// Payloads and results are compressed by LZ4 in all partitions, unless the server was built without it. No part of the
// record of the schema says by what, so that a database may move to another server.
func TestPayloadsAreCompressedByLZ4(t *testing.T) {
	t.Parallel()
	conn := testenv.Connect(t, testenv.Database(t))
	want := 66 * testenv.Number(t, conn, `SELECT ('lz4' = ANY (enumvals))::int FROM pg_settings
		WHERE name = 'default_toast_compression'`)
	testenv.Same(t, testenv.Number(t, conn, `SELECT count(*) FROM pg_attribute
		WHERE attcompression = 'l' AND format('%s.%s', attrelid::regclass, attname) ~
			'^(work_queue(_\d\d)?\.payload|work_result(_\d\d)?\.result)$'`), want, "columns compressed by LZ4")
}

// uncommented names what the schema has and says nothing of.
const uncommented = `
SELECT c.relname FROM pg_class c
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm') AND NOT c.relispartition
    AND obj_description(c.oid, 'pg_class') IS NULL
UNION ALL
SELECT c.relname || '.' || a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm') AND NOT c.relispartition
    AND a.attnum > 0 AND NOT a.attisdropped AND col_description(c.oid, a.attnum) IS NULL
UNION ALL
SELECT p.oid::regprocedure::text FROM pg_proc p
WHERE p.pronamespace = 'public'::regnamespace AND obj_description(p.oid, 'pg_proc') IS NULL
ORDER BY 1`

// Whoever looks with psql is told what each table, view, column and function is for.
func TestEverythingSaysWhatItIs(t *testing.T) {
	t.Parallel()
	conn := testenv.Connect(t, testenv.Database(t))
	list := func() []string {
		t.Helper()
		rows := testenv.Must(conn.Query(t.Context(), uncommented))(t)
		return testenv.Must(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
	}
	for _, name := range list() {
		t.Errorf("%s has no comment: write COMMENT ON in the migration that makes it", name)
	}
	testenv.Must(conn.Exec(t.Context(), `COMMENT ON TABLE leader IS NULL; COMMENT ON COLUMN work_block.ready IS NULL;
		COMMENT ON VIEW run_item IS NULL; COMMENT ON FUNCTION audit_guard() IS NULL`))(t)
	testenv.Same(t, len(list()), 4, "of four comments that were taken away it misses")
}

var (
	madeTable = regexp.MustCompile(`CREATE TABLE (\w+)`)
	madeIndex = regexp.MustCompile(`CREATE (?:UNIQUE )?INDEX (\w+) ON (\w+)`)
)

// Nodes continue while the schema changes: an index on a table that was there before is built while they work.
func TestIndexesOfTablesInUseAreBuiltConcurrently(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.sql")
	if err != nil || len(files) < 4 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		text := testenv.Must(os.ReadFile(file))(t)
		up, _, _ := strings.Cut(string(text), "-- +goose Down")
		own := map[string]bool{}
		for _, m := range madeTable.FindAllStringSubmatch(up, -1) {
			own[m[1]] = true
		}
		for _, m := range madeIndex.FindAllStringSubmatch(up, -1) {
			if !own[m[2]] {
				t.Errorf("%s: %s locks out everyone who works on %s", file, m[1], m[2])
			}
		}
	}
}

// wayBack returns what takes a migration back.
func wayBack(t *testing.T, file string) string {
	t.Helper()
	text := testenv.Must(os.ReadFile(file))(t)
	_, down, found := strings.Cut(string(text), "-- +goose Down")
	if !found {
		t.Fatalf("there is no way back from %s", file)
	}
	return down
}
