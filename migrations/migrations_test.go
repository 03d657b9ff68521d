package migrations_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const foundation = "00001_foundation.sql"

func pending(t *testing.T, url string) []string {
	t.Helper()
	names, err := migrations.Pending(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestUpAppliesWhatIsPendingOnce(t *testing.T) {
	t.Parallel()
	url := testenv.EmptyDatabase(t)
	before := pending(t, url)
	if !slices.Contains(before, foundation) {
		t.Fatalf("pending before: %v", before)
	}
	applied, err := migrations.Up(t.Context(), url, nil)
	if err != nil || !slices.Equal(applied, before) {
		t.Fatalf("applied %v, %v; want %v", applied, err, before)
	}
	if left := pending(t, url); len(left) != 0 {
		t.Errorf("pending after: %v", left)
	}
	again, err := migrations.Up(t.Context(), url, nil)
	if err != nil || len(again) != 0 {
		t.Errorf("the second time applied %v, %v", again, err)
	}
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
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, applied...)
		})
	}
	running.Wait()
	if slices.Sort(all); !slices.Equal(all, want) {
		t.Errorf("together they applied %v, want each of %v once", all, want)
	}
}

func TestPendingChangesNothing(t *testing.T) {
	t.Parallel()
	url := testenv.EmptyDatabase(t)
	pending(t, url)
	var tables int
	err := testenv.Connect(t, url).QueryRow(t.Context(),
		`SELECT count(*) FROM pg_tables WHERE schemaname = 'public'`).Scan(&tables)
	if err != nil || tables != 0 {
		t.Errorf("it made %d tables (%v)", tables, err)
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
	applied, err := migrations.Up(t.Context(), url+separator+"role="+role, nil)
	if err != nil || len(applied) != 0 {
		t.Errorf("applied %v, %v", applied, err)
	}
}

func TestUpNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	url := testenv.EmptyDatabase(t)
	if _, err := testenv.Connect(t, url).Exec(t.Context(), `CREATE TABLE quarantine ()`); err != nil {
		t.Fatal(err)
	}
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

func TestADatabaseNewerThanTheBinaryIsLeftAlone(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	_, err := testenv.Connect(t, url).Exec(t.Context(),
		`INSERT INTO tranche_migration (version_id, is_applied) VALUES (99999, true)`)
	if err != nil {
		t.Fatal(err)
	}
	applied, err := migrations.Up(t.Context(), url, nil)
	if err != nil || len(applied) != 0 {
		t.Errorf("applied %v, %v", applied, err)
	}
}

// Numbers that are applied say nothing when they are those of other files.
func TestADatabaseOfFormerFilesIsRefused(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	_, err := testenv.Connect(t, url).Exec(t.Context(), `DROP VIEW run_item;
		INSERT INTO tranche_migration (version_id, is_applied) VALUES (21, true)`)
	if err != nil {
		t.Fatal(err)
	}
	_, up := migrations.Up(t.Context(), url, nil)
	_, pending := migrations.Pending(t.Context(), url)
	for name, err := range map[string]error{
		"up": up, "pending": pending, "ready": migrations.Ready(t.Context(), url),
		"grant": migrations.Grant(t.Context(), url, "anybody"),
	} {
		former, ok := errors.AsType[*migrations.FormerSchemaError](err)
		if !ok || former.Newest != 21 || !strings.Contains(err.Error(), "make the database anew") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Each migration can be taken back, down to nothing, and applied again.
func TestAllTheWayBackAndUpAgain(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	conn := testenv.Connect(t, url)
	files, err := filepath.Glob("*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range slices.Backward(files) {
		down := strings.ReplaceAll(wayBack(t, file), "CONCURRENTLY", "") // several statements are one transaction
		if _, err := conn.Exec(t.Context(), down); err != nil {
			t.Fatalf("take %s back: %v", file, err)
		}
	}
	var left int
	err = conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace
		AND relkind IN ('r', 'v') AND relname <> 'tranche_migration')
		+ (SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace)`).Scan(&left)
	if err != nil || left != 0 {
		t.Errorf("%d tables, views and functions are left, %v", left, err)
	}
	if _, err := conn.Exec(t.Context(), `DELETE FROM tranche_migration WHERE version_id > 0`); err != nil {
		t.Fatal(err)
	}
	if applied, err := migrations.Up(t.Context(), url, nil); err != nil || len(applied) != len(files) {
		t.Errorf("applied %v, %v", applied, err)
	}
}
