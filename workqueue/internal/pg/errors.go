package pg

import (
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
)

// IsLockTimeout reports whether a statement waited too long for a lock.
func IsLockTimeout(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "55P03"
}

// Storable reports whether s can stand in jsonb.
func Storable(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// IsUniqueViolation reports whether an error is that of a unique constraint.
func IsUniqueViolation(err error, constraint string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "23505" && pg.ConstraintName == constraint
}
