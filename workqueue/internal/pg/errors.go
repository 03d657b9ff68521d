package pg

import (
	"errors"
	"regexp"
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

// partition is what a constraint of a partition has in its name beside that of the whole.
var partition = regexp.MustCompile(`_\d\d_`)

// IsUniqueViolation reports whether an error is that of a unique constraint, also of one of its partitions.
func IsUniqueViolation(err error, constraint string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "23505" && partition.ReplaceAllString(pg.ConstraintName, "_") == constraint
}
