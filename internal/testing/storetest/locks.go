package storetest

import (
	"context"
)

// HoldRows runs a locking query in a transaction of its own, and returns what ends it.
func (b *Bench) HoldRows(sql string, args ...any) (release func()) {
	b.Helper()
	tx, err := b.Pool.Begin(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	release = func() { _ = tx.Rollback(context.Background()) } // once is enough
	b.Cleanup(release)
	tag, err := tx.Exec(b.Context(), sql, args...)
	if err != nil || tag.RowsAffected() == 0 {
		b.Fatalf("hold: %s, %v", tag, err)
	}
	return release
}

// Waiters counts the statements that wait for a lock.
func (b *Bench) Waiters() int {
	b.Helper()
	return b.Number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
		AND wait_event_type = 'Lock'`)
}
