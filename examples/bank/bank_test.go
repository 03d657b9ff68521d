package bank_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/endpointstest"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/examples/bank"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// tables has an account for each thing that can be wrong.
const tables = `
CREATE TABLE account (id int, number text, kind text, opened date, owner text, street text, place text,
    opening bigint, closing bigint);
INSERT INTO account VALUES (1, 'HS1', 'Current account', '2001-02-03', 'Ada', 'Quay 1', 'Harbour', 50, 70),
    (2, 'HS2', 'Current account', '2001-02-03', 'Bob', 'Quay 2', 'Harbour', 50, NULL);
CREATE TABLE movement (account int, booked date, amount bigint);
INSERT INTO movement VALUES (1, '2025-01-31', 50), (1, '2025-01-02', -10), (1, '2025-12-31', -20),
    (2, '2025-03-03', 20), (2, '2025-03-04', NULL);
CREATE TABLE branch (id int, name text, street text, place text, phone text);
INSERT INTO branch VALUES (7, 'Quay', 'Quay Street 1', 'Harbour', '007');
CREATE TABLE customer (account int, branch int, adviser text);
INSERT INTO customer VALUES (1, 7, 'Eva'), (2, 991, 'Eva')`

func database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	db := testenv.Pool(t)
	for _, sql := range []string{tables, bank.CreateLedger} {
		testenv.Must(db.Exec(t.Context(), sql))(t)
	}
	return db
}

// ledger is what stands in it, each account once for each time.
func ledger(t *testing.T, db *pgxpool.Pool) (entries, accounts int) {
	t.Helper()
	testenv.NoError(t, db.QueryRow(t.Context(), `SELECT count(*), count(DISTINCT account) FROM asked`).
		Scan(&entries, &accounts))
	return entries, accounts
}

type serve func(context.Context, *nats.Conn, *pgxpool.Pool, *zap.Logger) error

func TestEndpoints(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		endpoint string
		serve    serve
		want     map[string]string
	}{
		{bank.AccountsEndpoint, bank.ServeAccounts, map[string]string{
			"1": `{"account":1,"number":"HS1","kind":"Current account","opened":"2001-02-03","owner":"Ada",` +
				`"street":"Quay 1","place":"Harbour","opening":50,"closing":70}`,
			"2": "no_balance: the account has no balance",
			"3": "unknown_account: the bank has no such account", "seven": wire.CodeBadPayload,
		}},
		{bank.TransactionsEndpoint, bank.ServeTransactions, map[string]string{
			"1": `{"year":2025,"months":[{"n":2,"in":50,"out":10},{},{},{},{},{},{},{},{},{},{},{"n":1,"out":20}]}`,
			"2": "broken_movement: 1 of 2 movements without an amount",
			"3": `{"year":2025,"months":[{},{},{},{},{},{},{},{},{},{},{},{}]}`, "seven": wire.CodeBadPayload,
		}},
		{bank.MailEndpoint, serveMail, map[string]string{
			"1": "no_statement: there is no part of a step statement to post", "seven": wire.CodeBadPayload,
		}},
	} {
		t.Run(test.endpoint, func(t *testing.T) {
			t.Parallel()
			db, kit := database(t), endpointstest.New(t, endpointstest.Timeout(time.Minute))
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- test.serve(ctx, kit.Conn(), db, nil) }()
			var items []endpointstest.Part
			for _, key := range []string{"3", "1", "2", "seven"} {
				items = append(items, endpointstest.Item(key, map[string]string{"account": key, "form": "pdf"}))
			}
			reply := kit.Send(test.endpoint, items...)
			cancel()
			testenv.NoError(t, <-ended)
			for key, answer := range test.want {
				if slot, _ := reply.Slot(key); text(slot) != answer {
					t.Errorf("account %s: got %s, want %s", key, text(slot), answer)
				}
			}
			if entries, accounts := ledger(t, db); entries != 3 || accounts != 3 {
				t.Errorf("the ledger has %d entries for %d accounts, want 3", entries, accounts)
			}
		})
	}
}

func serveMail(ctx context.Context, nc *nats.Conn, db *pgxpool.Pool, log *zap.Logger) error {
	return bank.ServeMail(ctx, nc, db, "statement", log)
}

func text(slot wire.Slot) string {
	switch {
	case slot.Err == nil:
		return string(slot.Data)
	case slot.Err.Code == wire.CodeBadPayload:
		return slot.Err.Code // its words are another package's
	default:
		return fmt.Sprintf("%s: %s", slot.Err.Code, slot.Err.Message)
	}
}
