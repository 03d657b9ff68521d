package pginbox

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// TestStatementsPrepare has PostgreSQL check each statement against the table.
func TestStatementsPrepare(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, testenv.EmptyDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, Schema); err != nil {
		t.Fatal(err)
	}
	for name, sql := range map[string]string{
		"lockCreation": lockCreation, "claim": claim, "recall": recall, "remember": remember, "forget": forget,
		"selectOldRuns": selectOldRuns, "deleteOld": deleteOld,
	} {
		if _, err := conn.Prepare(ctx, name, sql); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
