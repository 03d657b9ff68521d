package migrations_test

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/migrations"
	"github.com/tranchehq/tranche/workqueue"
)

// PROOF: who may do what, 15.
// A role that serves may read and write all that there is, except what is the owner's. What a new migration makes is
// not forgotten: the tables are found in their text, and compared with those of the database here.
func TestGrantIsForAllTables(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	admin := testenv.Connect(t, url)
	role, asRole := testenv.Role(t, url, "")
	exec := func(sql string) {
		t.Helper()
		testenv.Must(admin.Exec(t.Context(), sql))(t)
	}
	exec(`REVOKE CREATE ON SCHEMA public FROM PUBLIC`)
	exec(`CREATE TABLE somebody_elses ()`)
	// Of a time before there were two roles.
	exec(`GRANT ALL ON ALL TABLES IN SCHEMA public TO ` + role)
	exec(`REVOKE ALL ON somebody_elses FROM ` + role)
	exec(`GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO ` + role)
	var lacks *migrations.NotReadyError
	refused := func(right string) {
		t.Helper()
		if err := migrations.Ready(t.Context(), asRole); !errors.As(err, &lacks) || lacks.Role != role ||
			!strings.Contains(err.Error(), "may not "+right) ||
			!strings.Contains(err.Error(), "tranche migrate --database URL --grant "+role) {
			t.Errorf("before the grant: %v", err)
		}
	}
	refused("")
	exec(`REVOKE USAGE ON SCHEMA public FROM PUBLIC`)
	refused("use the schema public")
	for range 2 {
		testenv.NoError(t, migrations.Grant(t.Context(), url, role))
	}
	testenv.NoError(t, migrations.Ready(t.Context(), asRole))
	rows := map[string]string{}
	var table, rights string
	found := testenv.Must(admin.Query(t.Context(), `SELECT tablename::text, coalesce(string_agg(p, ' ' ORDER BY p)
			FILTER (WHERE has_table_privilege($1, tablename::text, p)), '')
		FROM pg_tables, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) p
		WHERE schemaname = 'public' GROUP BY tablename`, role))(t)
	for found.Next() {
		testenv.NoError(t, found.Scan(&table, &rights))
		rows[table] = rights
	}
	special := map[string]string{"somebody_elses": "", "audit_log": "SELECT", "audit_expiry": "SELECT",
		"audit_head": "SELECT", "audit_gone": "SELECT", "tranche_migration": "SELECT", "schema_object": "SELECT"}
	partition, partitions := regexp.MustCompile(`^work_(queue|result)_\d\d$`), 0
	for table, is := range rows {
		want, ok := special[table]
		if partition.MatchString(table) {
			want, ok = "SELECT TRUNCATE", true
			partitions++
		}
		if !ok {
			want = "DELETE INSERT SELECT UPDATE"
		}
		testenv.Same(t, is, want, "%s", table)
	}
	testenv.Same(t, partitions, 2*workqueue.Partitions, "partitions of two tables")
	for _, view := range []string{"audit_deletable", "run_item", "run_item_parts"} {
		testenv.Same(t, testenv.Number(t, admin, `SELECT count(*) WHERE has_table_privilege($1, $2, 'SELECT')
			AND NOT has_table_privilege($1, $2, 'INSERT, UPDATE, DELETE, TRIGGER')`, role, view), 1,
			"%s can be read, and not changed", view)
	}
	testenv.Same(t, testenv.Number(t, admin, `SELECT count(*) FROM pg_sequences WHERE schemaname = 'public'
		AND has_sequence_privilege($1, sequencename::text, 'UPDATE')`, role), 0, "sequences can be set")
	if len(rows) < 40 {
		t.Errorf("only %d tables: the search no longer knows them", len(rows))
	}
}

// PROOF: who may do what, 15.
// A role that could change the audit log anyway is granted nothing, and told why.
func TestGrantRefusesARoleThatNothingBinds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ attributes, sql, says string }{
		"none":                 {"", "", "CREATE ROLE"},
		"superuser":            {"SUPERUSER", "", "superuser"},
		"owner":                {"", "ALTER TABLE audit_log OWNER TO ROLE", "owns the tables"},
		"owner of the schema":  {"", "ALTER SCHEMA public OWNER TO ROLE", "owns the schema"},
		"may make tables":      {"", "GRANT CREATE ON SCHEMA public TO ROLE", "REVOKE CREATE ON SCHEMA public"},
		"by PUBLIC":            {"", "GRANT DELETE ON audit_log TO PUBLIC", "PUBLIC"},
		"a column by PUBLIC":   {"", "GRANT UPDATE (actor) ON audit_log TO PUBLIC", "PUBLIC"},
		"writes all":           {"", "GRANT pg_write_all_data TO ROLE", "pg_write_all_data"},
		"runs programs":        {"NOINHERIT", "GRANT pg_execute_server_program TO ROLE", "pg_execute_server_program"},
		"nothing, and may not": {"", "GRANT SELECT ON audit_log TO ROLE", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			admin := testenv.Connect(t, url)
			role, asRole := testenv.Role(t, url, c.attributes)
			t.Cleanup(func() { _, _ = admin.Exec(t.Context(), `ALTER TABLE audit_log OWNER TO CURRENT_USER`) })
			for _, sql := range []string{`REVOKE CREATE ON SCHEMA public FROM PUBLIC`, strings.ReplaceAll(c.sql, "ROLE", role)} {
				testenv.Must(admin.Exec(t.Context(), sql))(t)
			}
			if name == "none" {
				role = "tranche_nobody"
			}
			err := migrations.Grant(t.Context(), url, role)
			var refused *migrations.RoleError
			switch {
			case c.says == "" && err != nil:
				t.Error(err)
			case c.says != "" && (!errors.As(err, &refused) || !strings.Contains(err.Error(), c.says)):
				t.Errorf("got %v, want it to say %s", err, c.says)
			case c.says != "" && name != "none" && name != "superuser":
				testenv.Fails(t, migrations.Ready(t.Context(), asRole), "it was granted something anyway")
			}
		})
	}
}

// Who cannot apply what is missing is told who can, and nothing was tried.
func TestUpByARoleThatMayNot(t *testing.T) {
	t.Parallel()
	url := testenv.EmptyDatabase(t)
	testenv.Must(testenv.Connect(t, url).Exec(t.Context(), `REVOKE CREATE ON SCHEMA public FROM PUBLIC`))(t)
	role, asRole := testenv.Role(t, url, "")
	applied, err := migrations.Up(t.Context(), asRole, nil)
	var refused *migrations.NotReadyError
	if !errors.As(err, &refused) || refused.Role != role || !slices.Contains(refused.Missing, foundation) ||
		applied != nil {
		t.Errorf("applied %v, %v", applied, err)
	}
}

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
	testenv.MustSame(t, len(drift()), 0, "drift of a schema as it was made: %q", drift())
	exec := func(statements ...string) {
		t.Helper()
		for _, statement := range statements {
			testenv.Must(owner.Exec(t.Context(), statement))(t)
		}
	}
	exec(`CREATE TABLE of_others (id integer)`, `CREATE INDEX by_hand ON batchrun (plan, created_at)`)
	testenv.SameList(t, drift(), nil, "drift by others' tables and indexes")
	exec(`ALTER TABLE plan ADD COLUMN note text`, `ALTER TABLE work_block DROP CONSTRAINT work_block_disjoint`,
		`ALTER TABLE leader ALTER COLUMN epoch TYPE numeric`, `DROP INDEX work_block_ready`,
		`CREATE OR REPLACE FUNCTION database_timeline() RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint'`)
	all := strings.Join(drift(), "\n")
	for _, want := range []string{"has the column plan.note text, which no migration made",
		"lacks the constraint work_block_disjoint of work_block", "lacks the column leader.epoch bigint not null",
		"has the column leader.epoch numeric not null", "lacks the index work_block_ready of work_block",
		"lacks the function database_timeline "} {
		testenv.Has(t, all, want, "the rights")
	}
	// A process that ended between the migrations and their record has left that of the version before.
	exec(`DELETE FROM schema_object WHERE object LIKE 'version %' OR object LIKE '%work_slice%'`)
	testenv.SameList(t, drift(), nil, "drift of a schema that is not recorded yet")
	testenv.Must(migrations.Up(t.Context(), url, nil))(t)
	exec(`ALTER TABLE work_slice ADD COLUMN note text`)
	testenv.SameList(t, drift(), []string{"has the column work_slice.note text, which no migration made"},
		"after it was recorded again")
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
