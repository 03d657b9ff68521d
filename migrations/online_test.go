package migrations_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/migrations"
)

var (
	madeTable = regexp.MustCompile(`CREATE TABLE (\w+)`)
	madeIndex = regexp.MustCompile(`CREATE (?:UNIQUE )?INDEX (\w+) ON (\w+)`)
)

// Nodes go on while the schema changes: an index on a table that was there before is built beside their work.
func TestIndexesOfTablesInUseAreBuiltConcurrently(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.sql")
	if err != nil || len(files) < 4 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		if file < "00003" {
			continue // nobody has been on those versions with much
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
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

// Indexes are not built in a transaction. A build that was broken off leaves an index that is none.
func TestAnIndexThatWasBrokenOffIsBuiltAnew(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	conn := testenv.Connect(t, url)
	later := backTo(t, conn, 4) // they were not applied yet
	for _, sql := range []string{
		`DROP INDEX batchrun_plan`,
		`UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'work_slice_due'::regclass`,
		`DELETE FROM tranche_migration WHERE version_id = 4`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	applied, err := migrations.Up(t.Context(), url, nil)
	if err != nil || len(applied) != later+1 {
		t.Fatalf("applied %v, %v", applied, err)
	}
	var sound int
	err = conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_index WHERE indisvalid AND indexrelid IN
		('work_slice_due'::regclass, 'batchrun_plan'::regclass)`).Scan(&sound)
	if err != nil || sound != 2 {
		t.Errorf("%d of 2 indexes are sound, %v", sound, err)
	}
}
