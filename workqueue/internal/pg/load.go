package pg

import (
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
)

// Storable reports whether s can stand in jsonb.
func Storable(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

func IsUniqueViolation(err error, constraint string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "23505" && pg.ConstraintName == constraint
}
