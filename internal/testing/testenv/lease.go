package testenv

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// lease is a migrated database with its connections, which tests of the binary use one after another: most of a small
// test's time went into a clone, and into what new connections of PostgreSQL read and plan first. At its end the binary
// leaves the databases, without connections, to other binaries on the same server.
type lease struct {
	name           string
	admin, serving *pgxpool.Pool
}

const (
	// leaseTemplate is the migrated database with what beginLeases adds.
	leaseTemplate = "tranche_lease"
	// beginLeases keeps what a migrated database has in its tables and sequences, and counts changes of its schema.
	// testenv.emptied puts rows, sequences, statistics and the clock back, or returns that it cannot: only rows may have
	// changed.
	beginLeases = `
CREATE SCHEMA testenv;
CREATE TABLE testenv."sequences of public" AS
    SELECT format('%I.%I', schemaname, sequencename)::regclass AS name, start_value, last_value
    FROM pg_sequences WHERE schemaname = 'public';
DO $$ DECLARE t record; BEGIN
    FOR t IN SELECT oid::regclass AS name, relname FROM pg_class
        WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND pg_relation_size(oid) > 0 LOOP
        EXECUTE format('CREATE TABLE testenv.%I AS TABLE %s', t.relname, t.name);
    END LOOP;
END $$;
CREATE VIEW testenv."tables of public" AS
    SELECT t.oid::regclass AS name, seed.oid::regclass AS seed, seed.xmin AS copied,
        pg_table_size(t.oid) AS size,
        seed.oid IS NULL AND NOT EXISTS (SELECT FROM pg_constraint WHERE confrelid = t.oid) AS truncatable
    FROM pg_class t LEFT JOIN pg_class seed ON seed.relnamespace = 'testenv'::regnamespace AND seed.relname = t.relname
    WHERE t.relkind = 'r' AND t.relnamespace = 'public'::regnamespace
        AND (seed.oid IS NOT NULL OR pg_relation_size(t.oid) > 0);
CREATE SEQUENCE testenv.schema_changes;
CREATE FUNCTION testenv.emptied() RETURNS boolean LANGUAGE plpgsql AS $$ DECLARE t record; changed boolean; BEGIN
    -- A statement of a connection that was cut may still run.
    IF NOT (SELECT coalesce(bool_and(pg_terminate_backend(pid, 10000)), true) FROM pg_stat_activity
            WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
                AND (state <> 'idle' OR application_name <> current_setting('application_name')))
        OR pg_sequence_last_value('testenv.schema_changes') IS NOT NULL
        OR EXISTS (SELECT FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase
            WHERE d.datname = current_database()) THEN
        RETURN false;
    END IF;
    PERFORM set_config('session_replication_role', 'replica', true);
    DELETE FROM pg_statistic WHERE starelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace);
    -- An empty table of more than ten pages is planned for like a full one.
    UPDATE pg_class SET relpages = 0, reltuples = -1, relallvisible = 0
    WHERE relnamespace = 'public'::regnamespace AND (reltuples > 0 OR reltuples = 0 AND relkind = 'r');
    FOR t IN TABLE testenv."tables of public" LOOP
        IF t.size > 4000000 AND NOT t.truncatable THEN -- too many to be deleted one by one
            RETURN false;
        ELSIF t.seed IS NULL THEN
            EXECUTE CASE WHEN t.size > 100000 AND t.truncatable THEN 'TRUNCATE ' ELSE 'DELETE FROM ' END || t.name;
            CONTINUE;
        END IF;
        -- A row that a test wrote is younger than the copy of its table.
        EXECUTE format('SELECT count(*) <> (SELECT count(*) FROM %2$s) OR min(age(xmin)) < age($1) FROM %1$s',
            t.name, t.seed) INTO changed USING t.copied;
        IF changed THEN
            EXECUTE format('DELETE FROM %1$s; INSERT INTO %1$s OVERRIDING SYSTEM VALUE TABLE %2$s', t.name, t.seed);
        END IF;
    END LOOP;
    PERFORM setval(name, coalesce(last_value, start_value), last_value IS NOT NULL)
    FROM testenv."sequences of public" WHERE pg_sequence_last_value(name) IS DISTINCT FROM last_value;
    IF to_regclass('testenv.ahead') IS NOT NULL THEN
        PERFORM setval('testenv.ahead', 0), setval('testenv.stopped', 1, false);
    END IF;
    RETURN true;
END $$;
CREATE FUNCTION testenv.schema_changed() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
    IF tg_tag LIKE 'DROP%' OR EXISTS (
        SELECT FROM pg_event_trigger_ddl_commands() WHERE schema_name IS DISTINCT FROM 'pg_temp') THEN
        PERFORM nextval('testenv.schema_changes');
    END IF;
END $$;
CREATE EVENT TRIGGER testenv_schema_changed ON ddl_command_end EXECUTE FUNCTION testenv.schema_changed()`

	// idle has the leases that no binary uses, in the database postgres.
	idle       = `CREATE TABLE idle (name text)`
	takeIdle   = `DELETE FROM idle WHERE name = (SELECT name FROM idle LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING name`
	returnIdle = `INSERT INTO idle VALUES ($1)`
)

// leased are the settings of a lease's connections. A statement is planned once: by plans for each value of its
// parameters, small tests would take a fifth longer.
var leased = map[string]string{"application_name": "testenv", "plan_cache_mode": "force_generic_plan"}

// Pool returns a superuser's pool on a migrated database, which the test has for itself.
func Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	admin, _ := Pools(t)
	return admin
}

// Pools is Pool with a second pool, whose role has only the rights of `tranche migrate --grant`.
func Pools(t testing.TB) (admin, serving *pgxpool.Pool) {
	t.Helper()
	l := Must(shared.lease(t.Context()))(t)
	t.Cleanup(func() { Same(t, shared.giveBack(l, !t.Failed()), nil, "give the test's database back") })
	return l.admin, l.serving
}

func (s *sharedServer) lease(ctx context.Context) (*lease, error) {
	s.mu.Lock()
	if n := len(s.leases); n > 0 {
		l := s.leases[n-1]
		s.leases = s.leases[:n-1]
		s.mu.Unlock()
		return l, nil
	}
	s.mu.Unlock()
	l, url, err := &lease{}, "", s.open()
	if err != nil {
		return nil, err
	}
	err = s.admin.QueryRow(ctx, takeIdle).Scan(&l.name)
	if err == nil {
		url, err = withDatabase(s.base, l.name)
	} else if errors.Is(err, pgx.ErrNoRows) {
		l.name, url, err = s.clone(ctx, leaseTemplate)
	}
	if err != nil {
		return nil, err
	}
	if l.admin, err = connect(url, leased); err != nil {
		return nil, err
	}
	if url, err = as(url, servingRole); err != nil {
		return nil, err
	}
	l.serving, err = connect(url, leased)
	return l, err
}

// giveBack makes a database as it was migrated, for the next test, or drops it.
func (s *sharedServer) giveBack(l *lease, keep bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if keep && l.emptied(ctx) {
		s.mu.Lock()
		s.leases = append(s.leases, l)
		s.mu.Unlock()
		return nil
	}
	return s.end(ctx, l)
}

// emptied empties the database. It reports whether the next test finds it like a clone.
func (l *lease) emptied(ctx context.Context) bool {
	if l.admin.Stat().AcquiredConns()+l.serving.Stat().AcquiredConns() > 0 {
		return false
	}
	var emptied bool
	err := l.admin.QueryRow(ctx, `SELECT testenv.emptied()`).Scan(&emptied)
	return err == nil && emptied
}

func (s *sharedServer) end(ctx context.Context, l *lease) error {
	l.close()
	return s.drop(ctx, l.name)
}

func (l *lease) close() {
	l.admin.Close()
	l.serving.Close()
}
