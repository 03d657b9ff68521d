package migrations_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

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
		rows, err := conn.Query(t.Context(), uncommented)
		if err != nil {
			t.Fatal(err)
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	for _, name := range list() {
		t.Errorf("%s has no comment: write COMMENT ON in the migration that makes it", name)
	}
	_, err := conn.Exec(t.Context(), `COMMENT ON TABLE leader IS NULL; COMMENT ON COLUMN work_block.ready IS NULL;
		COMMENT ON VIEW run_item IS NULL; COMMENT ON FUNCTION audit_guard() IS NULL`)
	if err != nil {
		t.Fatal(err)
	}
	if found := list(); len(found) != 4 {
		t.Errorf("of four comments that were taken away it misses %v", found)
	}
}
