package service

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Statements are all the statements of the package, by name.
var Statements = map[string]string{
	"insertService": insertServiceSQL, "dropOpened": dropOpenedSQL, "findOpened": findOpenedSQL,
	"lockBatch": lockBatchSQL, "addedBefore": addedBeforeSQL, "addItems": addItemsSQL, "groupsOf": groupsOfSQL,
	"check": checkSQL, "lockAll": lockAllSQL, "failWhole": failWholeSQL, "fail": failSQL, "touch": touchSQL,
	"end": endSQL, "get": getSQL, "list": listSQL, "listOwner": listOwnerSQL, "groupStates": groupStatesSQL,
	"missing": missingSQL, "markDeleted": markDeletedSQL, "toPurge": toPurgeSQL, "purgeFailed": purgeFailedSQL,
	"purgeAdds": purgeAddsSQL, "purgeGroups": purgeGroupsSQL, "reapCandidates": reapCandidatesSQL,
	"reapVerdict": reapVerdictSQL, "deferReap": deferReapSQL, "dueWebhooks": dueWebhooksSQL,
	"webhookDelivered": webhookDeliveredSQL, "webhookFailed": webhookFailedSQL,
}

// AddWith, ReapWith and EndWith are the operations with another statement in the place of one of theirs: for mutants,
// which must be caught.
func AddWith(ctx context.Context, tx pgx.Tx, lock string, batch uuid.UUID, n int64, key string) (Added, error) {
	return addBehind(ctx, tx, lock, batch, n, key)
}

func ReapWith(ctx context.Context, tx pgx.Tx, judge string, limit int) (Reaped, error) {
	return reapBy(ctx, tx, judge, limit, reapGroups)
}

// ReapFew is Reap with another bound of groups.
func ReapFew(ctx context.Context, tx pgx.Tx, limit, groups int) (Reaped, error) {
	return reapBy(ctx, tx, reapVerdictSQL, limit, groups)
}

func EndWith(ctx context.Context, tx pgx.Tx, sql string, batch uuid.UUID) error {
	_, err := tx.Exec(ctx, sql, batch, string(EventCompleted))
	return err
}
