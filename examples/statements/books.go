package statements

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/endpoints"
)

// books knows what the bank has written down.
type books struct {
	bank *pgxpool.Pool
}

// entry is what the bank knows of one account. A nil pointer is a NULL, or a row that is not there.
type entry struct {
	Account, Branch, Known *int32
	Balance                *int64
	Movements, Sum, Broken int64
}

// selectEntries answers for each id in the order asked for, so that row n belongs to item n.
const selectEntries = `
SELECT a.aid, a.bid, b.bid, a.abalance, coalesce(h.movements, 0), coalesce(h.sum, 0), coalesce(h.broken, 0)
FROM unnest($1::int[]) WITH ORDINALITY AS asked (aid, place)
LEFT JOIN pgbench_accounts a USING (aid)
LEFT JOIN pgbench_branches b ON b.bid = a.bid
LEFT JOIN (
    SELECT aid, count(*) AS movements, sum(delta) AS sum, count(*) - count(delta) AS broken
    FROM pgbench_history WHERE aid = ANY($1) GROUP BY aid
) h USING (aid)
ORDER BY place`

// close makes the statements of a chunk of accounts: one query for all of them, an answer for each.
func (b books) close(ctx context.Context, chunk *endpoints.Chunk[Account, Statement]) error {
	items := chunk.Items()
	ids := make([]int32, len(items))
	for i, item := range items {
		ids[i] = item.In.ID
	}
	rows, err := b.bank.Query(ctx, selectEntries, ids)
	if err != nil {
		return endpoints.Retry("bank", "ask the bank: %v", err)
	}
	entries, err := pgx.CollectRows(rows, pgx.RowToStructByPos[entry])
	if err != nil {
		return endpoints.Retry("bank", "ask the bank: %v", err)
	}
	for i, item := range items {
		if code, reason := entries[i].gap(); code != "" {
			item.Fail(code, "%s", reason)
			continue
		}
		item.Reply(entries[i].statement())
	}
	return nil
}

// gap says what keeps an account from being closed, if anything does.
func (e entry) gap() (code, reason string) {
	switch {
	case e.Account == nil:
		return CodeUnknownAccount, "the bank has no such account"
	case e.Branch == nil:
		return CodeUnknownBranch, "the account belongs to no branch"
	case e.Known == nil:
		return CodeUnknownBranch, fmt.Sprintf("branch %d does not exist", *e.Branch)
	case e.Balance == nil:
		return CodeNoBalance, "the account has no balance"
	case e.Broken > 0:
		return CodeBrokenMovement, fmt.Sprintf("%d of %d movements without an amount", e.Broken, e.Movements)
	default:
		return "", ""
	}
}

// statement is for an entry without a gap.
func (e entry) statement() Statement {
	return Statement{
		Account: *e.Account, Branch: *e.Branch, Opening: *e.Balance - e.Sum, Closing: *e.Balance,
		Movements: e.Movements, Sum: e.Sum,
	}
}
