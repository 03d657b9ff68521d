package testenv

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/embedded"
)

// lease is a migrated database with its connections, which tests of the binary use one after another: most of a small
// test's time went into a clone, and into what new connections of PostgreSQL read and plan first.
type lease struct {
	name           string
	admin, serving *pgxpool.Pool
}

const (
	// leaseName is the application name of a lease's connections.
	leaseName = "testenv"
	// leaseBytes is the size of its tables beyond which a database is not used again.
	leaseBytes = 4 << 20
	// endPatience is how long other sessions on a leased database have to end.
	endPatience = 10 * time.Second

	// beginLeases keeps what a migrated database has in its tables and sequences, and counts changes of its schema.
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
CREATE SEQUENCE testenv.schema_changes;
CREATE FUNCTION testenv.schema_changed() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
    IF tg_tag LIKE 'DROP%' OR EXISTS (
        SELECT FROM pg_event_trigger_ddl_commands() WHERE schema_name IS DISTINCT FROM 'pg_temp') THEN
        PERFORM nextval('testenv.schema_changes');
    END IF;
END $$;
CREATE EVENT TRIGGER testenv_schema_changed ON ddl_command_end EXECUTE FUNCTION testenv.schema_changed()`

	// endSessions ends what a test left: a statement of a connection that was cut may still run.
	endSessions = `
SELECT coalesce(bool_and(pg_terminate_backend(pid, $1)), true) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
    AND (state <> 'idle' OR application_name <> $2)`

	// reusable is whether only rows have changed, and few.
	reusable = `
SELECT pg_sequence_last_value('testenv.schema_changes') IS NULL AND NOT EXISTS (
        SELECT FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase
        WHERE d.datname = current_database())
    AND (SELECT sum(pg_relation_size(oid)) < $1 FROM pg_class
        WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace)`

	// empty puts rows, sequences and the clock back.
	empty = `
DO $$ DECLARE t record; changed boolean; BEGIN
    PERFORM set_config('session_replication_role', 'replica', true);
    FOR t IN SELECT oid::regclass AS name, to_regclass(format('testenv.%I', relname)) AS seed FROM pg_class
        WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace LOOP
        IF t.seed IS NOT NULL THEN
            EXECUTE format('SELECT EXISTS (TABLE %1$s EXCEPT TABLE %2$s) OR EXISTS (TABLE %2$s EXCEPT TABLE %1$s)',
                t.name, t.seed) INTO changed;
            IF changed THEN
                EXECUTE format('DELETE FROM %1$s; INSERT INTO %1$s OVERRIDING SYSTEM VALUE TABLE %2$s', t.name, t.seed);
            END IF;
        ELSIF pg_relation_size(t.name) > 0 THEN
            EXECUTE 'DELETE FROM ' || t.name;
        END IF;
    END LOOP;
    PERFORM setval(name, coalesce(last_value, start_value), last_value IS NOT NULL)
    FROM testenv."sequences of public" WHERE pg_sequence_last_value(name) IS DISTINCT FROM last_value;
    IF to_regclass('testenv.ahead') IS NOT NULL THEN
        PERFORM setval('testenv.ahead', 0), setval('testenv.stopped', 1, false);
    END IF;
END $$`
)

// leased are the settings of a lease's connections. A statement is planned once: by plans for each value of its
// parameters, small tests would take a fifth longer.
var leased = map[string]string{"application_name": leaseName, "plan_cache_mode": "force_generic_plan"}

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
	t.Cleanup(func() {
		if err := shared.giveBack(l, !t.Failed()); err != nil {
			t.Errorf("give the test's database back: %v", err)
		}
	})
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
	name, url, err := s.clone(ctx, embedded.DefaultDatabase)
	if err != nil {
		return nil, err
	}
	l := &lease{name: name}
	if l.admin, err = connect(url, leased); err != nil {
		return nil, err
	}
	if _, err = l.admin.Exec(ctx, beginLeases); err != nil {
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
	var ended, same bool
	err := errors.Join(
		l.admin.QueryRow(ctx, endSessions, endPatience.Milliseconds(), leaseName).Scan(&ended),
		l.admin.QueryRow(ctx, reusable, leaseBytes).Scan(&same))
	if err != nil || !ended || !same {
		return false
	}
	_, err = l.admin.Exec(ctx, empty)
	return err == nil
}

func (s *sharedServer) end(ctx context.Context, l *lease) error {
	l.admin.Close()
	l.serving.Close()
	return s.drop(ctx, l.name)
}
