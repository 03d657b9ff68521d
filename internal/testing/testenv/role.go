package testenv

import (
	"context"
	"errors"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/migrations"
)

// Serving returns the URL of a [Database] for a role with only the rights of `tranche migrate --grant`.
func Serving(t testing.TB, database string) string {
	t.Helper()
	return Must(as(database, servingRole))(t)
}

// Role creates a login role with attributes, like "CREATEROLE", and returns its name and URL. The database must be
// from [Database] or [EmptyDatabase]. When the test ends, the role and what it owns are dropped.
func Role(t testing.TB, database, attributes string) (name, at string) {
	t.Helper()
	name = "tranche_role_" + suffix()
	admin := Must(pgx.Connect(t.Context(), database))(t)
	t.Cleanup(func() {
		ctx := context.Background()
		_, dropped := admin.Exec(ctx, "DROP OWNED BY "+name+" CASCADE")
		_, gone := admin.Exec(ctx, "DROP ROLE "+name)
		if err := errors.Join(dropped, gone, admin.Close(ctx)); err != nil {
			t.Errorf("drop role %s: %v", name, err)
		}
	})
	if _, err := admin.Exec(t.Context(), "CREATE ROLE "+name+" LOGIN PASSWORD '"+name+"' "+attributes); err != nil {
		t.Fatalf("create role %s: %v", name, err)
	}
	return name, Must(as(database, name))(t)
}

// as returns the URL for another role, whose password is its name.
func as(database, role string) (string, error) {
	u, err := url.Parse(database)
	if err != nil {
		return "", err
	}
	u.User = url.UserPassword(role, role)
	return u.String(), nil
}

// servingRole has only the rights of `tranche migrate --grant`.
const servingRole = "tranche_serving"

// grantServing makes the role that serves. PostgreSQL 14 also lets every role create tables.
func grantServing(ctx context.Context, database string) error {
	admin, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	_, err = admin.Exec(ctx, `REVOKE CREATE ON SCHEMA public FROM PUBLIC;
		CREATE ROLE `+servingRole+` LOGIN PASSWORD '`+servingRole+`'`)
	return errors.Join(err, admin.Close(ctx), migrations.Grant(ctx, database, servingRole))
}
