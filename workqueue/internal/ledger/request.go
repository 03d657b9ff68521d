package ledger

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
)

// The row stays locked until the transaction ends, so that nobody takes for undone what is about to be done.
const carryOut = `
UPDATE api_request SET carried_out = coalesce(carried_out, $4)
WHERE user_name = $1 AND key = $2 AND claim = $3`

type ClaimKey struct{}

// NoteCarriedOut notes a change with the request that makes it, if it named a key. It comes last in a transaction.
func NoteCarriedOut(ctx context.Context, tx pgx.Tx, done workqueue.CarriedOut) error {
	claim, ok := ctx.Value(ClaimKey{}).(*workqueue.RequestClaim)
	if !ok {
		return nil
	}
	what, err := json.Marshal(done)
	if err != nil {
		return fmt.Errorf("note that request %q was carried out: %w", claim.Key, err)
	}
	tag, err := tx.Exec(ctx, carryOut, claim.User, claim.Key, claim.ID, what)
	if err == nil && tag.RowsAffected() == 0 {
		err = workqueue.ErrClaimLost
	}
	if err != nil {
		return fmt.Errorf("note that request %q was carried out: %w", claim.Key, err)
	}
	return nil
}
