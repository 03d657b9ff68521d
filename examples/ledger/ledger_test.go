package main

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/endpoints/endpointstest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func open(t *testing.T) (*pgxpool.Pool, *ledger) {
	t.Helper()
	pool := testenv.Connect(t, testenv.EmptyDatabase(t))
	books := testenv.Must(openLedger(t.Context(), pool))(t)
	const accounts = `INSERT INTO ledger_accounts VALUES ('A', 10000), ('B', -500), ('C', 0)`
	testenv.Must(pool.Exec(t.Context(), accounts))(t)
	return pool, books
}

func sum(t *testing.T, pool *pgxpool.Pool, sql string) (n int64) {
	t.Helper()
	testenv.NoError(t, pool.QueryRow(t.Context(), sql).Scan(&n))
	return n
}

func TestInterestIsBookedOnce(t *testing.T) {
	t.Parallel()
	pool, books := open(t)
	kit := endpointstest.New(t)
	instance := kit.Serve(books.serve)
	kill := kit.KillBeforeReply("book-interest") // after booking the interest, before the reply
	pending := kit.Post("book-interest", endpointstest.Item("A", nil), endpointstest.Item("B", nil),
		endpointstest.Item("C", nil), endpointstest.Item("D", nil))
	kill.Wait()
	instance.Restart()
	reply := pending.Wait()
	again := kit.Reissue(reply.Request)
	for _, r := range []*endpointstest.Reply{reply, again} {
		testenv.Same(t, endpointstest.Result[booking](t, r, "A"), (booking{Interest: 150, Balance: 10150}), "A")
		testenv.Same(t, endpointstest.Result[booking](t, r, "C"), (booking{}), "C")
		for key, code := range map[string]string{"B": "overdrawn", "D": "unknown_account"} {
			if err := r.Err(key); err == nil || err.Code != code {
				t.Errorf("%s: %v", key, err)
			}
		}
	}
	testenv.Same(t, sum(t, pool, `SELECT sum(cents) FROM ledger_bookings`), 150, "cents were booked")
	testenv.Same(t, sum(t, pool, `SELECT sum(cents) FROM ledger_accounts`), 9650, "cents on the accounts")
}
