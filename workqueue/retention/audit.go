package retention

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/session"
)

const (
	sealAudit = `SELECT audit_seal($1)`
	sealPiece = 1000
)

// SealAudit chains the committed rows of the audit log that are not in its chain yet. Concurrent
// calls take turns.
func (s Store) SealAudit(ctx context.Context) error {
	for n := sealPiece; n == sealPiece; {
		err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			return tx.QueryRow(ctx, sealAudit, sealPiece).Scan(&n)
		})
		if err != nil {
			return fmt.Errorf("seal the audit log: %w", err)
		}
	}
	return nil
}

const (
	auditSent     = `SELECT seal FROM audit_sink`
	noteAuditSent = `
INSERT INTO audit_sink (target, seal, error) VALUES ($1, $2, $3)
ON CONFLICT (id) DO UPDATE SET target = excluded.target, seal = excluded.seal, error = excluded.error`
)

// maxCarried limits the bytes of documents that are sent together, unless one entry has more.
const maxCarried = 512 << 10

// CarryAudit sends entries of the audit log that were not sent so far, in the order of the chain, and returns how many.
// If saving the position fails, they are sent again. Leader work.
func (s Store) CarryAudit(ctx context.Context, lease workqueue.Lease, target string,
	send func(context.Context, []inspect.AuditEntry) error) (n int, err error) {
	var sent int64
	err = s.db.Pool.QueryRow(ctx, auditSent).Scan(&sent)
	first := errors.Is(err, pgx.ErrNoRows)
	if err != nil && !first {
		return 0, fmt.Errorf("carry the audit log: %w", err)
	}
	page, err := inspect.New(s.db).ChainedAudit(ctx, sent, inspect.MaxAudit)
	if err != nil || len(page.Entries) == 0 && !first {
		return 0, err
	}
	size := 0
	for i := range page.Entries {
		e := &page.Entries[i]
		if size += len(e.Detail) + len(e.Before) + len(e.After); size > maxCarried && i > 0 {
			page.Entries, page.Next = page.Entries[:i], page.Entries[i-1].Seal
			break
		}
	}
	why := ""
	failed := send(ctx, page.Entries)
	if failed == nil {
		sent = max(sent, page.Next)
	} else {
		why = failed.Error()
	}
	err = session.New(s.db).ExecAsLeader(ctx, lease, noteAuditSent, target, sent, why)
	if err = errors.Join(failed, err); err != nil {
		return 0, fmt.Errorf("carry the audit log to %s: %w", target, err)
	}
	return len(page.Entries), nil
}
