package migrations_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/migrations"
)

// What someone changes of the schema by hand is named, an index that was added is not, and of a newer schema nothing
// more is said than that.
func TestDriftOfTheSchema(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	owner, serving := testenv.Connect(t, url), testenv.Connect(t, testenv.Serving(t, url))
	drift := func() []string {
		t.Helper()
		all, _, err := migrations.Drift(t.Context(), serving)
		testenv.NoError(t, err)
		return all
	}
	if all := drift(); len(all) > 0 {
		t.Fatalf("a schema as it was made drifts: %q", all)
	}
	exec := func(statements ...string) {
		t.Helper()
		for _, statement := range statements {
			_, err := owner.Exec(t.Context(), statement)
			testenv.NoError(t, err)
		}
	}
	exec(`CREATE TABLE of_others (id integer)`, `CREATE INDEX by_hand ON batchrun (plan, created_at)`)
	if all := drift(); len(all) > 0 {
		t.Errorf("others' tables and indexes are drift: %q", all)
	}
	exec(`ALTER TABLE plan ADD COLUMN note text`, `ALTER TABLE work_block DROP CONSTRAINT work_block_disjoint`,
		`ALTER TABLE leader ALTER COLUMN epoch TYPE numeric`, `DROP INDEX work_block_ready`,
		`CREATE OR REPLACE FUNCTION database_timeline() RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint'`)
	all := strings.Join(drift(), "\n")
	for _, want := range []string{"has the column plan.note text, which no migration made",
		"lacks the constraint work_block_disjoint of work_block", "lacks the column leader.epoch bigint not null",
		"has the column leader.epoch numeric not null", "lacks the index work_block_ready of work_block",
		"lacks the function database_timeline "} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
	// A process that ended between the migrations and their record has left that of the version before.
	exec(`DELETE FROM schema_object WHERE object LIKE 'version %' OR object LIKE '%work_slice%'`)
	if all := drift(); len(all) > 0 {
		t.Errorf("a schema that is not recorded yet drifts: %q", all)
	}
	if _, err := migrations.Up(t.Context(), url, nil); err != nil {
		t.Fatal(err)
	}
	exec(`ALTER TABLE work_slice ADD COLUMN note text`)
	if all := drift(); !slices.Equal(all, []string{"has the column work_slice.note text, which no migration made"}) {
		t.Errorf("after it was recorded anew: %q", all)
	}
	exec(`INSERT INTO tranche_migration (version_id, is_applied) VALUES (99, true)`)
	if all := drift(); len(all) != 1 || !strings.Contains(all[0], "newer than this program: it has migration 00099") {
		t.Errorf("a newer schema: %q", all)
	}
	blind, _ := testenv.Role(t, url, "")
	notes, err := migrations.Notes(t.Context(), url, blind)
	if err != nil || len(notes) != 2 || !strings.Contains(notes[0], "the schema is newer") ||
		!strings.Contains(notes[1], `GRANT pg_read_all_stats TO "`+blind) {
		t.Errorf("at its URL: %q, %v", notes, err)
	}
	if _, hidden, err := migrations.StatsHidden(t.Context(), serving, ""); hidden || err != nil {
		t.Errorf("the role that was granted what serving needs does not see transactions of others (%v)", err)
	}
}
