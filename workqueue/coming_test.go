package workqueue_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/database"
)

func TestComing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, unreadable := pgconn.ParseConfig("postgres://localhost/x?sslmode=verify-full&sslrootcert=" + dir + "/none.pem")
	_, noSocket := pgconn.Connect(t.Context(), "host="+dir+" user=u dbname=x")
	_, readOnly := pgconn.Connect(t.Context(), withSetting(testenv.Database(t), "target_session_attrs=read-write",
		"default_transaction_read_only=on"))
	_, noName := pgconn.Connect(t.Context(), "postgres://u@db.invalid/x?sslmode=disable")
	for name, c := range map[string]struct {
		err  error
		says string // empty: it does not pass
	}{
		"no error":                {nil, ""},
		"of our own":              {errors.New("its schema lacks 00007"), ""},
		"a file of the URL":       {unreadable, ""},
		"no socket yet":           {noSocket, "is not there"},
		"no address yet":          {noName, "db.invalid"},
		"silent":                  {fmt.Errorf("ping: %w", context.DeadlineExceeded), "does not answer"},
		"lost in a migration":     {fmt.Errorf("apply 00001: %w", syscall.ECONNRESET), "is not there"},
		"no right to a socket":    {&os.SyscallError{Syscall: "connect", Err: syscall.EACCES}, ""},
		"an error of a migration": {&pgconn.PgError{Code: "42P07"}, ""},
		"stopped in a migration":  {fmt.Errorf("apply 00001: %w", &pgconn.PgError{Code: "57P01"}), "shutting down"},
		"no server promoted":      {readOnly, "takes no writes yet"},
		"a server that recovers":  {fmt.Errorf("ValidateConnect: %w", pgconn.ErrStandbyConnection), "takes no writes yet"},
		"pooler, server down":     {pooler("server login has been failing, (server_login_retry)"), "not there"},
		"pooler, older":           {pooler("pgbouncer cannot connect to server"), "is not there"},
		"pooler, login":           {pooler("client_login_timeout (server down)"), "is not there"},
		"pooler, queue":           {pooler("query_wait_timeout"), "does not answer its pooler"},
		"pooler, full":            {pooler("no more connections allowed (max_client_conn)"), "no connection left"},
		"pooler, stopping":        {pooler("pooler is shutting down"), "shutting down"},
		"pooler, no database":     {pooler("no such database: x"), ""},
		"pooler, password":        {pooler("password authentication failed"), ""},
		"pooler, parameter":       {pooler("unsupported startup parameter: jit"), ""},
	} {
		why, coming := database.Coming(c.err)
		if coming != (c.says != "") || !strings.Contains(why, c.says) {
			t.Errorf("%s: %q, %t; of %v", name, why, coming, c.err)
		}
	}
}

// pooler is how PgBouncer tells of its own failures.
func pooler(says string) error {
	return fmt.Errorf("connect: %w", &pgconn.PgError{Severity: "FATAL", Code: "08P01", Message: says})
}

func withSetting(url string, settings ...string) string {
	separator := "?"
	if strings.Contains(url, "?") {
		separator = "&"
	}
	return url + separator + strings.Join(settings, "&")
}
