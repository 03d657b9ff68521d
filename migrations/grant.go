package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// RoleError is returned for a role that cannot be restricted to serving.
type RoleError struct {
	Role string
	Why  []string // each with the remedy
}

func (e *RoleError) Error() string {
	return fmt.Sprintf("role %s is granted nothing: %s", e.Role, strings.Join(e.Why, "; "))
}

// Grant gives a role only the rights that serving needs: it cannot change the schema, and only read the audit log and
// add rows to it. Repeat Grant after migrations that added tables. The URL is that of the owner. A role that could
// change the audit log or the schema anyway is refused with a [RoleError].
func Grant(ctx context.Context, url, role string) (err error) {
	db, err := open(ctx, url)
	if err != nil {
		return fmt.Errorf("grant to role %s: %w", role, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	missing, err := pending(ctx, db)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("grant to role %s: the schema lacks %s", role, strings.Join(missing, ", "))
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("grant to role %s: %w", role, err)
	}
	if err := grant(ctx, tx, role); err != nil {
		if _, refused := errors.AsType[*RoleError](err); !refused {
			err = fmt.Errorf("grant to role %s: %w", role, err)
		}
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// written is the columns of the audit log that a writer sets; the database sets its number and time.
const written = `actor, action, run_id, subject, detail, before, after, origin`

// owned returns the tables that serving only reads, except for audit_log's new rows.
func owned() []string {
	return []string{versionTable, "schema_object", "audit_log", "audit_expiry", "audit_head", "audit_gone"}
}

// sequences lists the sequences of our tables; an insert needs no right on them.
const sequences = `
SELECT d.objid::regclass::text FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
WHERE d.refobjid = ANY ($1::text[]::regclass[]) ORDER BY 1`

// partitions lists the tables emptied when a large run is deleted; rights on their parents do not cover them.
const partitions = `
SELECT i.inhrelid::regclass::text FROM pg_inherits i
WHERE i.inhparent IN ('work_queue'::regclass, 'work_result'::regclass) ORDER BY 1`

func grant(ctx context.Context, tx *sql.Tx, role string) error {
	var known, super bool
	if err := tx.QueryRowContext(ctx, roleKnown, role).Scan(&known, &super); err != nil {
		return err
	}
	switch {
	case !known:
		return &RoleError{role, []string{"it does not exist; create it: CREATE ROLE " + quoted(role) +
			" LOGIN PASSWORD '…'"}}
	case super:
		return &RoleError{role, []string{"it is a superuser, whom nothing binds"}}
	}
	var schema string
	if err := tx.QueryRowContext(ctx, ourSchema).Scan(&schema); err != nil {
		return err
	}
	tables, err := tables()
	if err != nil {
		return err
	}
	parts, err := texts(ctx, tx, partitions)
	if err != nil {
		return err
	}
	numbers, err := texts(ctx, tx, sequences, tables)
	if err != nil {
		return err
	}
	views := []string{"audit_deletable", itemView, "run_item_parts"}
	all := within(schema, slices.Concat(views, tables))
	serve := slices.DeleteFunc(tables, func(t string) bool { return slices.Contains(owned(), t) })
	to, from := " TO "+quoted(role), " FROM "+quoted(role)
	for _, statement := range []string{
		"GRANT USAGE ON SCHEMA " + quoted(schema) + to,
		"REVOKE ALL ON " + all + ", " + strings.Join(parts, ", ") + from,
		"REVOKE ALL ON SEQUENCE " + strings.Join(numbers, ", ") + from,
		"GRANT SELECT, INSERT, UPDATE, DELETE ON " + within(schema, serve) + to,
		"GRANT SELECT, TRUNCATE ON " + strings.Join(parts, ", ") + to,
		"GRANT SELECT ON " + within(schema, append(views, owned()...)) + to,
		"GRANT EXECUTE ON FUNCTION " + within(schema, []string{"tranche_now"}) + "()" + to,
		"GRANT EXECUTE ON FUNCTION " + within(schema, []string{"bytes_as_json"}) + "(bytea)" + to,
		"GRANT INSERT (" + written + ") ON " + within(schema, []string{"audit_log"}) + to,
		"GRANT EXECUTE ON FUNCTION " + within(schema, []string{"audit_seal"}) + "(integer)" + to,
		"GRANT EXECUTE ON FUNCTION " + within(schema, []string{"audit_expire"}) + "(timestamptz, integer)" + to,
		"GRANT EXECUTE ON FUNCTION " + within(schema, []string{"audit_erase"}) +
			"(text, text, uuid, bigint, integer)" + to,
		// To see for how long any role's oldest transaction has been open. Not every owner may grant it: see StatsHidden.
		"DO $tranche$ BEGIN GRANT pg_read_all_stats" + to +
			"; EXCEPTION WHEN insufficient_privilege THEN NULL; END $tranche$",
	} {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	why, err := texts(ctx, tx, rolesAbove, role)
	if err == nil && len(why) > 0 { // what is granted does not restrict the role
		err = &RoleError{role, why}
	}
	return err
}

// StatsHidden reports whether a role, "" for the current one, sees no details of other roles' transactions.
func StatsHidden(ctx context.Context, db Querier, role string) (name string, hidden bool, err error) {
	rows, _ := db.Query(ctx, statsHidden, role) // CollectRows returns the error
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return "", false, fmt.Errorf("check the rights on statistics: %w", err)
	}
	return strings.Join(found, ""), len(found) > 0, nil
}

// StatsRemedy returns the remedy for a role with [StatsHidden].
func StatsRemedy(role string) string {
	return "role " + role + " does not see how long transactions of others have been open, so the alert " +
		"TrancheDatabaseOldTransaction cannot fire for them; run as a superuser: GRANT pg_read_all_stats TO " + quoted(role)
}

const statsHidden = `
SELECT rolname::text FROM pg_roles
WHERE rolname = coalesce(nullif($1, ''), current_user) AND NOT pg_has_role(oid, 'pg_read_all_stats', 'USAGE')`

func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

func within(schema string, names []string) string {
	var all []string
	for _, name := range names {
		all = append(all, pgx.Identifier{schema, name}.Sanitize())
	}
	return strings.Join(all, ", ")
}

const (
	roleKnown = `
SELECT count(*) > 0, coalesce(bool_or(rolsuper), false) FROM pg_roles WHERE rolname = $1`

	ourSchema = `SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = 'audit_log'::regclass`

	// rolesAbove lists how a role could still change the audit log, the schema, or their server.
	rolesAbove = `
WITH t AS (
    SELECT c.oid, c.relowner, n.oid AS schema, n.nspname, n.nspowner
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = 'audit_log'::regclass)
SELECT w.why FROM t, pg_roles r, LATERAL (VALUES
    (pg_has_role(r.oid, t.relowner, 'MEMBER'), 'it is, or may become, ' || pg_get_userbyid(t.relowner)
        || ', which owns the tables; serve as another role'),
    (pg_has_role(r.oid, t.nspowner, 'MEMBER'), 'it is, or may become, ' || pg_get_userbyid(t.nspowner)
        || ', which owns the schema; serve as another role'),
    (has_schema_privilege(r.oid, t.schema, 'CREATE'),
        format('it may make tables; take that away: REVOKE CREATE ON SCHEMA %I FROM PUBLIC, %I', t.nspname, r.rolname)),
    (has_any_column_privilege(r.oid, t.oid, 'UPDATE') OR has_table_privilege(r.oid, t.oid, 'DELETE, TRUNCATE, TRIGGER'),
        format('it may change audit_log by what PUBLIC or another role was granted; take that away: REVOKE ALL ON %s '
        || 'FROM PUBLIC, or that role', t.oid::regclass)),
    (r.rolcreaterole AND current_setting('server_version_num')::integer < 160000,
        format('it may make itself a member of the owner; take that away: ALTER ROLE %I NOCREATEROLE', r.rolname))
    ) w (so, why)
WHERE r.rolname = $1 AND w.so
UNION ALL
SELECT 'it is a member of ' || p.rolname || ', which is above all tables' FROM pg_roles p
WHERE p.rolname IN ('pg_write_all_data', 'pg_write_server_files', 'pg_execute_server_program')
    AND pg_has_role($1, p.oid, 'MEMBER')`
)

type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func texts(ctx context.Context, db queryer, query string, args ...any) (all []string, err error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, err
		}
		all = append(all, text)
	}
	return all, rows.Err()
}

var made = regexp.MustCompile(`(?m)^CREATE TABLE (\w+)`)

// tables returns our tables by name: the database may contain others.
func tables() ([]string, error) {
	all, err := allMade(made)
	return append([]string{versionTable}, all...), err
}

// allMade returns the names of what the files create.
func allMade(what *regexp.Regexp) (all []string, err error) {
	entries, err := Files.ReadDir(".")
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		text, err := Files.ReadFile(entry.Name())
		if err != nil {
			return nil, err
		}
		up, _, _ := strings.Cut(string(text), "-- +goose Down")
		for _, m := range what.FindAllStringSubmatch(up, -1) {
			all = append(all, m[1])
		}
	}
	return all, nil
}
