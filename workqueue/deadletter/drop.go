package deadletter

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
)

const (
	// dropWaiting is set-based for the same reason as requeueWaiting.
	dropWaiting = `
WITH waiting AS MATERIALIZED (
    SELECT id FROM dead_letter WHERE state = 'waiting' AND ($1 = '' OR endpoint = $1)
    ORDER BY id FOR NO KEY UPDATE
), dropped AS (
    UPDATE dead_letter d SET state = 'dropped', body = NULL, changed_at = tranche_now()
    FROM waiting w WHERE d.id = w.id AND d.state = 'waiting' RETURNING d.id
)
SELECT (SELECT count(*) FROM dropped), ARRAY(SELECT id FROM dropped ORDER BY id LIMIT $2)`

	dropLetters = `
UPDATE dead_letter SET state = 'dropped', body = NULL, changed_at = tranche_now()
WHERE id = ANY($1) AND state IN ('waiting', 'reissued')`
)

// Drop gives dead letters up, and their bodies with them; what is known of them stays. It returns how many it dropped:
// letters that were dropped before do not count. A named letter that has been requeued is a LetterStateError, and
// nothing is dropped then.
func (s Store) Drop(ctx context.Context, sel DeadSelection, actor string) (n int, err error) {
	if err := sel.validate(); err != nil {
		return 0, fmt.Errorf("drop dead letters: %w", err)
	}
	err = s.db.InTxWithin(ctx, database.OperatorTimeout, func(ctx context.Context, tx pgx.Tx) (err error) {
		moved := letterMove{actor: actor, op: "drop", to: LetterDropped, sel: sel}
		if len(sel.Refs) > 0 {
			err = dropNamed(ctx, tx, &moved)
			n = len(moved.ids)
		} else {
			err = tx.QueryRow(ctx, dropWaiting, sel.Endpoint, maxListed).Scan(&n, &moved.ids)
			moved.waiting(n)
		}
		if err != nil || n == 0 {
			return err
		}
		return moved.audit(ctx, tx)
	})
	if err != nil {
		return 0, fmt.Errorf("drop dead letters: %w", err)
	}
	return n, nil
}

func dropNamed(ctx context.Context, tx pgx.Tx, moved *letterMove) error {
	rows, err := lockNamed(ctx, tx, moved.sel.Refs)
	if err != nil {
		return err
	}
	for i := range rows {
		switch l := &rows[i]; l.State {
		case LetterRequeued:
			return &LetterStateError{l.ID, l.State, "drop", "should it die again, drop the letter that comes then"}
		case LetterDropped:
		default:
			moved.add(l)
		}
	}
	tag, err := tx.Exec(ctx, dropLetters, moved.ids)
	if err == nil && tag.RowsAffected() != int64(len(moved.ids)) {
		err = fmt.Errorf("%d letters of %d: %w", tag.RowsAffected(), len(moved.ids), workqueue.ErrFence)
	}
	return err
}
