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

	"github.com/tranchehq/tranche/workqueue"
)

func TestComing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, unreadable := pgconn.ParseConfig("postgres://localhost/x?sslmode=verify-full&sslrootcert=" + dir + "/none.pem")
	_, noSocket := pgconn.Connect(t.Context(), "host="+dir+" user=u dbname=x")
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
		"mute":                    {fmt.Errorf("ping: %w", context.DeadlineExceeded), "does not answer"},
		"lost in a migration":     {fmt.Errorf("apply 00001: %w", syscall.ECONNRESET), "is not there"},
		"no right to a socket":    {&os.SyscallError{Syscall: "connect", Err: syscall.EACCES}, ""},
		"an error of a migration": {&pgconn.PgError{Code: "42P07"}, ""},
		"stopped in a migration":  {fmt.Errorf("apply 00001: %w", &pgconn.PgError{Code: "57P01"}), "shutting down"},
	} {
		why, coming := workqueue.Coming(c.err)
		if coming != (c.says != "") || !strings.Contains(why, c.says) {
			t.Errorf("%s: %q, %t; of %v", name, why, coming, c.err)
		}
	}
}
