package bankdata

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/examples/bank"
)

// Wound is an account that was broken, and the value that was there.
type Wound struct {
	Account int32
	Old     int64
	Code    string // how a service will call it
}

// codeUnknownBranch is how a node calls the status 404 of an HTTP service.
const codeUnknownBranch = "not_found"

// noBranch is the number of no branch.
const noBranch = 991

// Damage is one account broken in each service, far from each other.
type Damage struct{ NoBalance, UnknownBranch, BrokenMovement Wound }

// Wounds are the three.
func (d *Damage) Wounds() []Wound { return []Wound{d.NoBalance, d.UnknownBranch, d.BrokenMovement} }

const (
	// Each returns what was there before: old is the row as it stood when the statement began.
	dropBalance = `
UPDATE account a SET closing = NULL FROM account old WHERE a.id = $1 AND old.id = $1 RETURNING old.closing`
	dropBranch = `
UPDATE customer c SET branch = 991 FROM customer old
WHERE c.account = $1 AND old.account = $1 RETURNING old.branch`
	// dropAmounts takes one movement's amount from each account. Movements have no key; ctid names one within the
	// statement.
	dropAmounts = `
UPDATE movement m SET amount = NULL FROM (
    SELECT DISTINCT ON (account) ctid, account, amount FROM movement
    WHERE account = ANY($1::int[]) ORDER BY account, booked, amount
) old
WHERE m.ctid = old.ctid RETURNING old.account, old.amount`

	repairBalance = `UPDATE account SET closing = $2 WHERE id = $1 AND closing IS NULL`
	repairBranch  = `UPDATE customer SET branch = $2 WHERE account = $1 AND branch = 991`
	repairAmount  = `UPDATE movement SET amount = $2 WHERE account = $1 AND amount IS NULL`
)

// Hurt breaks three accounts, each in a service of its own.
func (b *Bank) Hurt(ctx context.Context) (*Damage, error) {
	n := int32(b.config.Accounts)
	d := &Damage{
		NoBalance:     Wound{Account: n/6 + 1, Code: bank.CodeNoBalance},
		UnknownBranch: Wound{Account: n/2 + 1, Code: codeUnknownBranch},
	}
	err := b.with(ctx, Accounts, "take an account its balance", func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, dropBalance, d.NoBalance.Account).Scan(&d.NoBalance.Old)
	})
	if err != nil {
		return nil, err
	}
	err = b.with(ctx, Branches, "take a customer the branch", func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, dropBranch, d.UnknownBranch.Account).Scan(&d.UnknownBranch.Old)
	})
	if err != nil {
		return nil, err
	}
	lost, err := b.LoseAmounts(ctx, []int32{int32(int64(n)*5/6 + 1)})
	if err != nil {
		return nil, err
	}
	d.BrokenMovement = lost[0]
	return d, nil
}

// Repair puts back what was there.
func (b *Bank) Repair(ctx context.Context, d *Damage) error {
	err := b.with(ctx, Accounts, "give an account its balance back", func(conn *pgx.Conn) error {
		return repair(ctx, conn, repairBalance, d.NoBalance)
	})
	if err != nil {
		return err
	}
	err = b.with(ctx, Branches, "give a customer the branch back", func(conn *pgx.Conn) error {
		return repair(ctx, conn, repairBranch, d.UnknownBranch)
	})
	if err != nil {
		return err
	}
	return b.FindAmounts(ctx, []Wound{d.BrokenMovement})
}

// LoseAmounts takes each account the amount of one of its movements.
func (b *Bank) LoseAmounts(ctx context.Context, accounts []int32) (lost []Wound, err error) {
	err = b.with(ctx, Transactions, "take movements their amounts", func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, dropAmounts, accounts)
		if err != nil {
			return err
		}
		lost, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (Wound, error) {
			w := Wound{Code: bank.CodeBrokenMovement}
			return w, row.Scan(&w.Account, &w.Old)
		})
		if err == nil && len(lost) != len(accounts) {
			err = fmt.Errorf("%d of %d accounts have movements", len(lost), len(accounts))
		}
		return err
	})
	return lost, err
}

// FindAmounts puts them back.
func (b *Bank) FindAmounts(ctx context.Context, lost []Wound) error {
	return b.with(ctx, Transactions, "give movements their amounts back", func(conn *pgx.Conn) error {
		for _, w := range lost {
			if err := repair(ctx, conn, repairAmount, w); err != nil {
				return err
			}
		}
		return nil
	})
}

func repair(ctx context.Context, conn *pgx.Conn, sql string, w Wound) error {
	tag, err := conn.Exec(ctx, sql, w.Account, w.Old)
	if err == nil && tag.RowsAffected() != 1 {
		err = fmt.Errorf("account %d (%s): %d rows changed, not 1", w.Account, w.Code, tag.RowsAffected())
	}
	return err
}

const branchOf = `SELECT branch FROM customer WHERE account = $1`

// TryYourself returns two statements for the database Branches: one sends an account to a branch that does not exist,
// the other one back.
func (b *Bank) TryYourself(ctx context.Context, account int32) (breaks, mends string, err error) {
	var branch int64
	err = b.with(ctx, Branches, "look for a customer's branch", func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, branchOf, account).Scan(&branch)
	})
	const update = "UPDATE customer SET branch = %d WHERE account = %d"
	return fmt.Sprintf(update, noBranch, account), fmt.Sprintf(update, branch, account), err
}
