package demo

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// testBank is a bank in a database of the test's own.
type testBank struct {
	*bank
	pool *pgxpool.Pool
}

// emptyBank is one that nobody has filled.
func emptyBank(t *testing.T) *testBank {
	t.Helper()
	url := testenv.Database(t)
	installs, err := embedded.FindInstalls(t.Context())
	must(t, err)
	b, err := newBank(url, installs[0].Dir)
	must(t, err)
	return &testBank{bank: b, pool: testenv.Connect(t, url)}
}

const (
	smallAccounts = 500
	// smallTables are pgbench's after two years, on a scale that is quick to look at.
	smallTables = `
CREATE TABLE pgbench_branches AS SELECT 1 AS bid;
CREATE TABLE pgbench_accounts AS SELECT aid, 1 AS bid, aid * 10 AS abalance FROM generate_series(1, 500) aid;
CREATE TABLE pgbench_history AS SELECT g % 100 + 1 AS aid, g * 7 - 900 AS delta FROM generate_series(1, 400) g;
CREATE TABLE last_year AS SELECT aid, abalance AS closing FROM pgbench_accounts;
UPDATE pgbench_accounts a SET abalance = abalance + (SELECT sum(delta) FROM pgbench_history h WHERE h.aid = a.aid)
WHERE aid <= 100`
)

func smallBank(t *testing.T) *testBank {
	t.Helper()
	b := emptyBank(t)
	_, err := b.pool.Exec(t.Context(), smallTables)
	must(t, err)
	return b
}

// number is one number from the bank.
func (b *testBank) number(t *testing.T, sql string, args ...any) int64 {
	t.Helper()
	var n int64
	must(t, b.pool.QueryRow(t.Context(), sql, args...).Scan(&n))
	return n
}

const exportLines = `
SELECT json_build_object('key', a.aid::text, 'state', 'done', 'result', json_build_object(
    'account', a.aid, 'branch', a.bid, 'closing', a.abalance, 'opening', a.abalance - coalesce(sum(h.delta), 0),
    'movements', count(h.aid), 'sum', coalesce(sum(h.delta), 0)))::text
FROM pgbench_accounts a LEFT JOIN pgbench_history h USING (aid)
GROUP BY a.aid, a.bid, a.abalance ORDER BY a.aid`

// export writes the statements that the bank should have, each after a test has had its way with it: a line that
// becomes nil is left out.
func (b *testBank) export(t *testing.T, tamper func(line *exportedLine) *exportedLine) string {
	t.Helper()
	rows, err := b.pool.Query(t.Context(), exportLines)
	must(t, err)
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(t, err)
	name := filepath.Join(t.TempDir(), statementsFile)
	file, err := os.Create(name)
	must(t, err)
	out := bufio.NewWriter(file)
	encoder := json.NewEncoder(out)
	for _, text := range texts {
		var line exportedLine
		must(t, json.Unmarshal([]byte(text), &line))
		if kept := tamper(&line); kept != nil {
			must(t, encoder.Encode(kept))
		}
	}
	must(t, out.Flush())
	must(t, file.Close())
	return name
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
