package identity

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// FailedLogin is logins that failed, summed up.
type FailedLogin struct {
	Address string // or network, from which they came; empty: several
	Way     string // token, cookie or provider; empty: several
	Why     string // of the last
	Count   int64

	First, Last time.Time
}

// Anonymous is what the audit log calls those who do not say who they are, or who are not believed.
const Anonymous = "anonymous"

// NoteFailedLogins adds a row to the audit log for each.
func (s Store) NoteFailedLogins(ctx context.Context, all []FailedLogin) error {
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		for i := range all {
			f := &all[i]
			detail := map[string]any{"count": f.Count, "first": f.First, "last": f.Last}
			for name, value := range map[string]string{"by": f.Way, "why": pg.Plain(f.Why)} {
				if value != "" {
					detail[name] = value
				}
			}
			err := ledger.AuditChange(ctx, tx, ledger.Action{Actor: Anonymous, Name: "login_failed", Subject: f.Address,
				Detail: detail})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("note failed logins: %w", err)
	}
	return nil
}
