package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/examples/statements"
)

// damage is what was broken in the bank, with what it takes to repair it.
type damage struct {
	noBalance, unknownBranch, brokenMovement wound
}

// wound is one account and the value that was there.
type wound struct {
	account int32
	old     int64
	code    string // how the service will call it
}

func (d *damage) wounds() []wound { return []wound{d.noBalance, d.unknownBranch, d.brokenMovement} }

const (
	// selectVictims finds three accounts far apart whose movements count, so that the proof would notice each.
	selectVictims = `
SELECT aid FROM (
    SELECT aid, row_number() OVER (ORDER BY aid) AS place, count(*) OVER () AS of
    FROM pgbench_history GROUP BY aid HAVING sum(delta) <> 0
) moved
WHERE of >= 3 AND place IN (of / 6 + 1, of / 2 + 1, of * 5 / 6 + 1)
ORDER BY aid`

	// Each returns what was there before: old is the row as it stood when the statement began.
	dropBalance = `
UPDATE pgbench_accounts a SET abalance = NULL FROM pgbench_accounts old
WHERE a.aid = $1 AND old.aid = $1 RETURNING old.abalance`
	dropBranch = `
UPDATE pgbench_accounts a SET bid = (SELECT max(bid) + 990 FROM pgbench_branches) FROM pgbench_accounts old
WHERE a.aid = $1 AND old.aid = $1 RETURNING old.bid`
	// History rows have no key; ctid names one within the statement.
	dropDelta = `
UPDATE pgbench_history h SET delta = NULL FROM (
    SELECT ctid, delta FROM pgbench_history WHERE aid = $1 AND delta <> 0 LIMIT 1
) old
WHERE h.ctid = old.ctid RETURNING old.delta`

	repairBalance = `UPDATE pgbench_accounts SET abalance = $2 WHERE aid = $1 AND abalance IS NULL`
	repairBranch  = `UPDATE pgbench_accounts SET bid = $2 WHERE aid = $1`
	repairDelta   = `UPDATE pgbench_history SET delta = $2 WHERE aid = $1 AND delta IS NULL`
)

// hurt damages three accounts, each in its own way.
func (b *bank) hurt(ctx context.Context) (*damage, error) {
	d := &damage{}
	err := b.with(ctx, "damage three accounts", func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, selectVictims)
		if err != nil {
			return err
		}
		victims, err := pgx.CollectRows(rows, pgx.RowTo[int32])
		if err != nil {
			return err
		}
		if len(victims) != 3 {
			return errors.New("fewer than three accounts have movements; have more with --transactions")
		}
		d.noBalance = wound{account: victims[0], code: statements.CodeNoBalance}
		d.unknownBranch = wound{account: victims[1], code: statements.CodeUnknownBranch}
		d.brokenMovement = wound{account: victims[2], code: statements.CodeBrokenMovement}
		return errors.Join(
			conn.QueryRow(ctx, dropBalance, victims[0]).Scan(&d.noBalance.old),
			conn.QueryRow(ctx, dropBranch, victims[1]).Scan(&d.unknownBranch.old),
			conn.QueryRow(ctx, dropDelta, victims[2]).Scan(&d.brokenMovement.old),
		)
	})
	return d, err
}

// repair puts back what was there.
func (b *bank) repair(ctx context.Context, d *damage) error {
	return b.with(ctx, "repair three accounts", func(conn *pgx.Conn) error {
		for sql, w := range map[string]wound{
			repairBalance: d.noBalance, repairBranch: d.unknownBranch, repairDelta: d.brokenMovement,
		} {
			tag, err := conn.Exec(ctx, sql, w.account, w.old)
			if err != nil {
				return err
			}
			if tag.RowsAffected() != 1 {
				return fmt.Errorf("account %d (%s): %d rows changed, not 1", w.account, w.code, tag.RowsAffected())
			}
		}
		return nil
	})
}
