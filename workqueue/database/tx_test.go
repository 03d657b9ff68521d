package database

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// talk counts how often those who ask begin to wait for an answer: round trips.
type talk struct {
	trips atomic.Int64
}

type talkConn struct {
	net.Conn
	of    *talk
	asked atomic.Bool
}

func (c *talkConn) Write(p []byte) (int, error) {
	c.asked.Store(true)
	return c.Conn.Write(p)
}

func (c *talkConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && c.asked.Swap(false) {
		c.of.trips.Add(1)
	}
	return n, err
}

// inModes runs a test with a store on one connection, as it is and as it is through a pooler.
func inModes(t *testing.T, test func(t *testing.T, s *DB, of *talk)) {
	t.Helper()
	for name, mode := range map[string]pgx.QueryExecMode{
		"prepared": pgx.QueryExecModeCacheStatement, "described": pgx.QueryExecModeCacheDescribe,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := testenv.Must(pgxpool.ParseConfig(testenv.Database(t)))(t)
			of, dial := &talk{}, config.ConnConfig.DialFunc
			config.MaxConns, config.ConnConfig.DefaultQueryExecMode = 1, mode
			config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := dial(ctx, network, addr)
				return &talkConn{Conn: conn, of: of}, err
			}
			config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
			pool := testenv.Must(pgxpool.NewWithConfig(t.Context(), config))(t)
			t.Cleanup(pool.Close)
			testenv.Must(pool.Exec(t.Context(), `CREATE TABLE note (n int PRIMARY KEY, CHECK (n < 1000))`))(t)
			test(t, New(pool), of)
		})
	}
}

const (
	insertNote = `INSERT INTO note VALUES ($1)`
	sumNotes   = `SELECT coalesce(sum(n), 0) FROM note`
)

// wantNotes fails the test unless the notes add up to want. It asks on the connection that was used before.
func wantNotes(t *testing.T, s *DB, want int) {
	t.Helper()
	var sum int
	testenv.NoError(t, s.Pool.QueryRow(t.Context(), sumNotes).Scan(&sum))
	testenv.Same(t, sum, want, "the notes add up to")
}

// addCounted adds notes, and has PostgreSQL check that want rows were added for each.
func addCounted(ctx context.Context, tx pgx.Tx, want int, notes ...int) error {
	batch := &pgx.Batch{}
	for _, n := range notes {
		pg.QueueRows(batch, want, insertNote, n)
	}
	return pg.Leave(ctx, tx, batch)
}

// A transaction takes as many round trips as its user waits for answers, however it asks.
func TestTransactionWaitsWhereItsUserDoes(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *DB, of *talk) {
		t.Helper()
		ways := map[string]struct {
			trips int64
			do    func(ctx context.Context, tx pgx.Tx, n int) error
		}{
			"nothing": {0, func(context.Context, pgx.Tx, int) error { return nil }},
			"later": {1, func(ctx context.Context, tx pgx.Tx, n int) error {
				return errors.Join(pg.Later(ctx, tx, insertNote, n), pg.Later(ctx, tx, insertNote, n+100))
			}},
			"exec": {2, func(ctx context.Context, tx pgx.Tx, n int) error {
				tag, err := tx.Exec(ctx, insertNote, n)
				if err == nil && tag.RowsAffected() != 1 {
					err = fmt.Errorf("the tag is %s", tag)
				}
				return errors.Join(err, pg.Later(ctx, tx, insertNote, n+100))
			}},
			"rows that PostgreSQL counts": {1, func(ctx context.Context, tx pgx.Tx, n int) error {
				return addCounted(ctx, tx, 1, n, n+100)
			}},
			"row": {2, func(ctx context.Context, tx pgx.Tx, n int) error {
				var got int
				err := errors.Join(pg.Later(ctx, tx, insertNote, n),
					tx.QueryRow(ctx, `SELECT n FROM note WHERE n = $1`, n).Scan(&got))
				if err == nil && got != n {
					err = fmt.Errorf("read %d", got)
				}
				return errors.Join(err, pg.Later(ctx, tx, insertNote, n+100))
			}},
			"no row": {2, func(ctx context.Context, tx pgx.Tx, n int) error {
				if err := tx.QueryRow(ctx, `SELECT n FROM note WHERE n = $1`, n).Scan(&n); !errors.Is(err, pgx.ErrNoRows) {
					return fmt.Errorf("got %w", err)
				}
				return errors.Join(pg.Later(ctx, tx, insertNote, n), pg.Later(ctx, tx, insertNote, n+100))
			}},
			"rows": {2, func(ctx context.Context, tx pgx.Tx, n int) error {
				rows, err := tx.Query(ctx, `SELECT generate_series($1::int, $1::int + 1)`, n)
				if err != nil {
					return err
				}
				got, err := pgx.CollectRows(rows, pgx.RowTo[int])
				if err == nil && len(got) != 2 {
					err = fmt.Errorf("read %d", got)
				}
				return errors.Join(err, pg.Later(ctx, tx, insertNote, n), pg.Later(ctx, tx, insertNote, n+100))
			}},
			"batch": {3, func(ctx context.Context, tx pgx.Tx, n int) error {
				for range 2 {
					batch, touched := &pgx.Batch{}, int64(0)
					batch.Queue(insertNote, n).Exec(func(tag pgconn.CommandTag) error {
						touched = tag.RowsAffected()
						return nil
					})
					if err := tx.SendBatch(ctx, batch).Close(); err != nil || touched != 1 {
						return fmt.Errorf("touched %d: %w", touched, err)
					}
					n += 100
				}
				return nil
			}},
		}
		sum, n := 0, 0
		for name, way := range ways {
			for warm := range 2 { // the first time statements are prepared, or described, too
				n++
				before := of.trips.Load()
				if err := s.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
					return way.do(ctx, tx, n)
				}); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if got := of.trips.Load() - before; warm == 1 && got != way.trips {
					t.Errorf("%s: %d round trips, want %d", name, got, way.trips)
				}
				if way.trips > 0 {
					sum += 2*n + 100
				}
				wantNotes(t, s, sum)
			}
		}
	})
}

// Whatever of a transaction fails, and whoever sees it, nothing of it is there, and its connection serves the next one.
func TestTransactionThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *DB, _ *talk) {
		t.Helper()
		broken := errors.New("broken")
		for name, f := range map[string]func(ctx context.Context, tx pgx.Tx) error{
			"before it began": func(context.Context, pgx.Tx) error { return broken },
			"in its user": func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, insertNote, 1)
				return errors.Join(err, broken)
			},
			"in its first statement": func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, insertNote, 5000)
				return err
			},
			"in a statement that cannot be": func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Query(ctx, `SELECT FROM nowhere`) //nolint:gocritic,sqlclosecheck // there are no rows
				return err
			},
			"in an argument": func(ctx context.Context, tx pgx.Tx) error {
				return errors.Join(pg.Later(ctx, tx, insertNote, 1), pg.Later(ctx, tx, insertNote, "x"))
			},
			"in what came before the last": func(ctx context.Context, tx pgx.Tx) error {
				return errors.Join(pg.Later(ctx, tx, insertNote, 5000), pg.Later(ctx, tx, insertNote, 1))
			},
			"in rows that PostgreSQL counts": func(ctx context.Context, tx pgx.Tx) error {
				return errors.Join(addCounted(ctx, tx, 1, 1), addCounted(ctx, tx, 2, 2))
			},
			"in what came before the rows": func(ctx context.Context, tx pgx.Tx) error {
				err := pg.Later(ctx, tx, insertNote, 5000)
				rows, _ := tx.Query(ctx, sumNotes)
				_, failed := pgx.CollectRows(rows, pgx.RowTo[int])
				return errors.Join(err, failed)
			},
			"and no one looked": func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, insertNote, 1)
				_, _ = tx.Exec(ctx, insertNote, 5000)
				return err
			},
			"and no one looked, with more to do": func(ctx context.Context, tx pgx.Tx) error {
				_, _ = tx.Exec(ctx, insertNote, 5000)
				return pg.Later(ctx, tx, insertNote, 1)
			},
		} {
			err := s.InTx(t.Context(), f)
			testenv.Fails(t, err, "%s: no error", name)
			counts := strings.HasPrefix(name, "in rows")
			testenv.Same(t, errors.Is(pg.Fenced(err), workqueue.ErrFence), counts, "%s: %v", name, err)
			wantNotes(t, s, 0)
		}
		testenv.Same(t, s.Pool.ordinary.Stat().NewConnsCount(), 1, "connections were made")
	})
}

// A deadlock or a serialization failure retries it entirely, also when it comes with the COMMIT.
func TestTransactionIsDoneAgain(t *testing.T) {
	t.Parallel()
	const fail = `DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END $$`
	inModes(t, func(t *testing.T, s *DB, _ *talk) {
		t.Helper()
		tries := 0
		testenv.NoError(t, s.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			if tries++; tries < 3 {
				return errors.Join(pg.Later(ctx, tx, insertNote, tries), pg.Later(ctx, tx, fail))
			}
			return pg.Later(ctx, tx, insertNote, tries)
		}))
		testenv.Same(t, tries, 3, "tries")
		wantNotes(t, s, 3)
	})
}

// One that was cut off leaves nothing, and the next has a connection.
func TestTransactionThatIsCutOff(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, s *DB, _ *talk) {
		t.Helper()
		for name, f := range map[string]func(ctx context.Context, tx pgx.Tx, cut func()) error{
			"between statements": func(ctx context.Context, tx pgx.Tx, cut func()) error {
				_, err := tx.Exec(ctx, insertNote, 1)
				cut()
				return err
			},
			"before its commit": func(ctx context.Context, tx pgx.Tx, cut func()) error {
				err := pg.Later(ctx, tx, insertNote, 1)
				cut()
				return err
			},
		} {
			ctx, cut := context.WithCancel(t.Context())
			err := s.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error { return f(ctx, tx, cut) })
			testenv.Is(t, err, context.Canceled, "%s", name)
			wantNotes(t, s, 0)
		}
		defer func() {
			if recover() == nil {
				t.Error("the panic got lost")
			}
			wantNotes(t, s, 0)
		}()
		_ = s.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, insertNote, 1)
			panic(err)
		})
	})
}

func TestReadKeys(t *testing.T) { // t.Setenv forbids t.Parallel
	text, path := "S0tLS0tLS0tLS0tLS0tLS0tLS0tLS0tLS0tLS0tLS0s=", t.TempDir()+"/key"
	testenv.NoError(t, os.WriteFile(path, []byte(text+"\n"), 0o600))
	t.Setenv("A_KEY", text)
	keys := testenv.Must(ReadKeys(t.Context(), []string{"file:" + path, "env:A_KEY", "exec:cat " + path}))(t)
	testenv.Same(t, fmt.Sprintf("%s", keys), fmt.Sprint(slices.Repeat([]string{strings.Repeat("K", 32)}, 3)), "keys")
	t.Setenv("A_KEY", text[1:])
	for source, says := range map[string]string{text: "want file:PATH", "env:A_KEY": "want 32 bytes",
		"env:NO_KEY": "not set", "file:/no/key": "no such file", "exec:/no/key": "no such file"} {
		_, err := ReadKeys(t.Context(), []string{source})
		if testenv.Says(t, err, says, "the key"); strings.Contains(fmt.Sprint(err), text[1:]) {
			t.Errorf("%s quotes the key: %v", source, err)
		}
	}
}
