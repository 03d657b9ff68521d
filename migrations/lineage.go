package migrations

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
)

// itemView shows the items of runs to people. The migration that makes it is the second, and always was since the files
// have their present numbers: a database that has that number and not the view had it of other files.
const (
	itemView       = "run_item"
	itemViewSource = 2
)

// FormerSchemaError is returned for a database that was migrated before the files had their present numbers, by a
// version of Tranche that was never released. There is no way on from there.
type FormerSchemaError struct {
	Newest int64 // the number of the migration that it had last
}

func (e *FormerSchemaError) Error() string {
	return fmt.Sprintf("its schema (migration %d, without the view %s) was made by a version of Tranche before its first "+
		"release, and cannot be brought up to date; make the database anew: drop it, create it, and run "+
		"tranche migrate --database URL; or, for the private one of tranche serve, choose another --data-dir", e.Newest,
		itemView)
}

// checkLineage refuses a database that was migrated, to the versions named, by other files than ours.
func checkLineage(ctx context.Context, db *sql.DB, versions []int64) error {
	if !slices.Contains(versions, itemViewSource) {
		return nil
	}
	var is bool
	if err := db.QueryRowContext(ctx, `SELECT to_regclass($1) IS NOT NULL`, itemView).Scan(&is); err != nil {
		return fmt.Errorf("look at the schema: %w", err)
	}
	if !is {
		return &FormerSchemaError{Newest: slices.Max(versions)}
	}
	return nil
}
