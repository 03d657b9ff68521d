package pg

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

func IsLockTimeout(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "55P03"
}
