package database

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const lockNotes = `LOCK TABLE note`

// noted returns a store with the table note, whose statements wait for locks for 100 ms.
func noted(t *testing.T) (s *DB, url string) {
	t.Helper()
	url = testenv.EmptyDatabase(t)
	s, release, err := Open(t.Context(), url, PoolConfig{LockTimeout: 100 * time.Millisecond})
	testenv.NoError(t, err)
	t.Cleanup(release)
	testenv.Must(s.Pool.Exec(t.Context(), `CREATE TABLE note (n int PRIMARY KEY)`))(t)
	return s, url
}

// hold locks the notes until the transaction ends.
func hold(t *testing.T, url string) pgx.Tx {
	t.Helper()
	tx := testenv.Must(testenv.Connect(t, url).Begin(t.Context()))(t)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	testenv.Must(tx.Exec(t.Context(), `SET application_name = 'a backup'`))(t)
	testenv.Must(tx.Exec(t.Context(), lockNotes))(t)
	return tx
}

// Who is patient waits for what is held longer than one statement may, and is told by whom when it is held permanently.
func TestWhatIsHeldIsWaitedFor(t *testing.T) {
	t.Parallel()
	s, url := noted(t)
	holder := hold(t, url)
	insert := func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, insertNote, 1); return err }
	if err := s.InTx(t.Context(), insert); !Contended(err) {
		t.Fatalf("without patience: %v", err)
	}
	err := s.InTx(Patiently(t.Context(), 3*time.Second), insert)
	held, ok := errors.AsType[*HeldError](err)
	if !ok || len(held.Holders) != 1 || !strings.Contains(held.Holders[0], "(a backup, user ") {
		t.Fatalf("held permanently: %v", err)
	}
	tries := 0
	err = s.InTx(Patiently(t.Context(), time.Minute), func(ctx context.Context, tx pgx.Tx) error {
		if tries++; tries == 3 {
			_ = holder.Rollback(t.Context()) // else the test waits forever
		}
		return insert(ctx, tx)
	})
	if err != nil || tries < 3 {
		t.Errorf("let go after %d tries: %v", tries, err)
	}
	wantNotes(t, s, 1)
}

// A connection that a restart closes is reopened, unless no one knows whether what it did was committed.
func TestAClosedConnectionIsMadeAnew(t *testing.T) {
	t.Parallel()
	s, url := noted(t)
	other := testenv.Connect(t, url)
	end := func(ctx context.Context, tx pgx.Tx) {
		var pid int
		testenv.Same(t, tx.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid), nil, "its process")
		if _, err := other.Exec(ctx, `SELECT pg_terminate_backend($1, 60000)`, pid); err != nil {
			t.Error(err)
		}
	}
	tries := 0
	testenv.NoError(t, s.InTx(Patiently(t.Context(), time.Minute), func(ctx context.Context, tx pgx.Tx) error {
		if tries++; tries == 1 {
			end(ctx, tx)
		}
		_, err := tx.Exec(ctx, insertNote, 1)
		return err
	}))
	testenv.Same(t, tries, 2, "tries")
	ctx := Patiently(t.Context(), time.Minute)
	if cut := io.ErrUnexpectedEOF; !patient(ctx, time.Now(), cut, false) || patient(ctx, time.Now(), cut, true) {
		t.Error("what was cut off at its commit may have been committed, and is not to be redone")
	}
	wantNotes(t, s, 1)
}

// Also what is read, and what may be done twice, outside of a transaction; and a snapshot is begun again.
func TestAStatementOnAClosedConnectionIsDoneAgain(t *testing.T) {
	t.Parallel()
	s, url := noted(t)
	other := testenv.Connect(t, url)
	row := func(rows pgx.Row, want int) error {
		var n int
		err := rows.Scan(&n)
		if err == nil && n != want {
			err = fmt.Errorf("read %d", n)
		}
		return err
	}
	for name, do := range map[string]func(context.Context) error{
		"row": func(ctx context.Context) error { return row(s.Pool.QueryRow(ctx, `SELECT 1`), 1) },
		"no row": func(ctx context.Context) error {
			if err := row(s.Pool.QueryRow(ctx, `SELECT 1 WHERE false`), 1); !errors.Is(err, pgx.ErrNoRows) {
				return err
			}
			return nil
		},
		"rows": func(ctx context.Context) error {
			found, err := pg.Collect(ctx, s.Pool, pgx.RowTo[int], `SELECT generate_series(1, 3)`)
			if err == nil && !slices.Equal(found, []int{1, 2, 3}) {
				err = fmt.Errorf("read %d", found)
			}
			return err
		},
		"exec": func(ctx context.Context) error { _, err := s.Pool.Exec(ctx, `UPDATE note SET n = 1`); return err },
		"batch": func(ctx context.Context) error {
			b := &pgx.Batch{}
			var n int
			b.Queue(`SELECT 1`).QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
			err := s.Pool.SendBatch(ctx, b).Close()
			if err == nil && n != 1 {
				err = fmt.Errorf("read %d", n)
			}
			return err
		},
		"snapshot": func(ctx context.Context) error {
			return s.Snapshot(ctx, func(tx pgx.Tx) error { return row(tx.QueryRow(ctx, `SELECT 1`), 1) })
		},
	} {
		for _, patience := range []time.Duration{0, time.Minute} {
			testenv.Same(t, do(t.Context()), nil, "%s", name)
			testenv.Must(other.Exec(t.Context(), `SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid()`))(t)
			switch err := do(Patiently(t.Context(), patience)); {
			case patience > 0 && err != nil:
				t.Errorf("%s, patiently: %v", name, err)
			case err != nil && !Lost(err):
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// PostgreSQL has fewer bits for how long a statement may take than a deadline has.
func TestAFarDeadline(t *testing.T) {
	t.Parallel()
	s, release, err := Open(t.Context(), testenv.EmptyDatabase(t), PoolConfig{TransactionPooler: true})
	testenv.NoError(t, err)
	defer release()
	ctx, cancel := context.WithTimeout(t.Context(), 30*24*time.Hour)
	defer cancel()
	testenv.Must(s.Pool.Exec(ctx, `SELECT 1`))(t)
}
