package migrations

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// Ready returns a [NotReadyError] for missing migrations or rights of the URL's role. It only reads, and takes no
// lock.
func Ready(ctx context.Context, url string) (err error) {
	db, err := open(ctx, url)
	if err != nil {
		return fmt.Errorf("check the schema: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	missing, err := pending(ctx, db)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	tables, err := tables()
	if err != nil {
		return err
	}
	e := &NotReadyError{}
	if len(missing) > 0 {
		e.Rights, err = texts(ctx, db, schemaHidden, versionTable)
	} else {
		e.Rights, err = texts(ctx, db, rightsMissing, strings.Join(tables, ","), strings.Join(owned(), ","))
	}
	if err != nil {
		return fmt.Errorf("check the rights on the schema: %w", err)
	}
	if len(e.Rights) == 0 && len(missing) > 0 {
		return &NotReadyError{Missing: missing}
	}
	if len(e.Rights) == 0 {
		return nil
	}
	if err := db.QueryRowContext(ctx, `SELECT current_user`).Scan(&e.Role); err != nil {
		return fmt.Errorf("check the rights on the schema: %w", err)
	}
	return e
}

// schemaHidden lists migrated schemas of search_path that the role may not use, so that they look empty.
const schemaHidden = `
SELECT 'use the schema ' || n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = $1 AND n.nspname = ANY (string_to_array(replace(current_setting('search_path'), ' ', ''), ','))
    AND NOT has_schema_privilege(n.oid, 'USAGE')`

// rightsMissing lists the rights that the current role lacks: $1 are our tables, $2 those that it only reads.
const rightsMissing = `
SELECT lower(p) || ' ' || name FROM unnest(string_to_array($1, ',')) name,
    unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p
WHERE (p = 'SELECT' OR name <> ALL (string_to_array($2, ','))) AND NOT has_table_privilege(name, p)
UNION ALL SELECT lower(p) || ' ' || i.inhrelid::regclass FROM pg_inherits i, unnest(ARRAY['SELECT', 'TRUNCATE']) p
WHERE i.inhparent IN (to_regclass('work_queue'), to_regclass('work_result')) AND NOT has_table_privilege(i.inhrelid, p)
UNION ALL SELECT 'insert audit_log' WHERE NOT has_column_privilege('audit_log', 'actor', 'INSERT')
UNION ALL SELECT 'execute audit_seal' WHERE NOT has_function_privilege('audit_seal(integer)', 'EXECUTE')
UNION ALL SELECT 'execute audit_expire'
WHERE NOT has_function_privilege('audit_expire(timestamptz, integer)', 'EXECUTE')
UNION ALL SELECT 'execute audit_erase'
WHERE NOT has_function_privilege('audit_erase(text, text, uuid, bigint, integer)', 'EXECUTE')`

// NotReadyError is what a database lacks for a node.
type NotReadyError struct {
	Missing []string // migrations, by file
	Role    string   // role that lacks rights
	Rights  []string // like "insert work_queue"
	Owner   string   // of the schema, if another role that alone may change it; else empty
}

func (e *NotReadyError) Error() string {
	grantee := cmp.Or(e.Role, "ROLE")
	switch {
	case len(e.Missing) == 0:
		return fmt.Sprintf("role %s may not %s, among what serving needs; run, as the owner of the schema: "+
			"tranche migrate --database URL --grant %s", e.Role, e.Rights[0], grantee)
	case e.Role != "":
		owner := "the owner of the schema"
		if e.Owner != "" {
			owner = e.Owner
		}
		return fmt.Sprintf("its schema lacks %s, and role %s may not change it; run, as %s: "+
			"tranche migrate --database URL --grant %s", strings.Join(e.Missing, ", "), e.Role, owner, grantee)
	}
	return fmt.Sprintf("its schema lacks %s; run: tranche migrate --database URL", strings.Join(e.Missing, ", "))
}

// mayMigrate refuses a role without the rights to migrate, before one statement of a file is denied.
func mayMigrate(ctx context.Context, db *sql.DB, missing []string) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	e := &NotReadyError{Missing: missing}
	var may bool
	if err := db.QueryRowContext(ctx, whoMigrates, versionTable).Scan(&e.Role, &e.Owner, &may); err != nil {
		return fmt.Errorf("check whose the schema is: %w", err)
	}
	if !may {
		return e
	}
	return nil
}

// whoMigrates uses the owner of the version table; without one, the right to create tables.
const whoMigrates = `
SELECT current_user,
    coalesce((SELECT pg_get_userbyid(c.relowner)::text FROM pg_class c WHERE c.oid = to_regclass($1)), ''),
    coalesce((SELECT pg_has_role(c.relowner, 'USAGE') AND has_schema_privilege(c.relnamespace, 'CREATE')
        FROM pg_class c WHERE c.oid = to_regclass($1)), has_schema_privilege(current_schema(), 'CREATE'), false)`
