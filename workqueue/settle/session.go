package settle

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
)

// EndSession closes a session in good order and hands back, in the same transaction, what it had claimed and not sent.
// It returns the number of slices handed back.
func (s Store) EndSession(ctx context.Context, id workqueue.SessionID) (int, error) {
	var set *settlement
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, ledger.EndSession, id); err != nil {
			return err
		}
		var err error
		set, err = s.release(ctx, tx, slicesOfSession, []any{id}, workqueue.CauseHandBack,
			workqueue.SlotError{Code: "handback", Message: "the node that had claimed the slice stopped"})
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("end session %s: %w", id, err)
	}
	s.tell(set)
	return len(set.ended), nil
}
