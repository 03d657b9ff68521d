package database

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// errDryRun takes back what a dry run has done.
var errDryRun = errors.New("this was a dry run")

// RedoOrTry runs an operator's transaction; a dry run does all of it and takes it back.
func (s *DB) RedoOrTry(ctx context.Context, dryRun bool, f func(context.Context, pgx.Tx) error) error {
	err := s.InTxWithin(ctx, OperatorTimeout, func(ctx context.Context, tx pgx.Tx) error {
		err := f(ctx, tx)
		if err == nil && dryRun {
			err = errDryRun
		}
		return err
	})
	if errors.Is(err, errDryRun) {
		return nil
	}
	return err
}
