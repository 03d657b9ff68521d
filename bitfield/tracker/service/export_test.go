package service

// Statements are all the statements of the package, by name.
var Statements = map[string]string{
	"insertService": insertServiceSQL, "dropOpened": dropOpenedSQL, "findOpened": findOpenedSQL,
	"lockBatch": lockBatchSQL, "addedBefore": addedBeforeSQL, "addItems": addItemsSQL, "groupsOf": groupsOfSQL,
	"check": checkSQL, "lockAll": lockAllSQL, "failWhole": failWholeSQL, "fail": failSQL, "touch": touchSQL,
	"end": endSQL, "get": getSQL, "list": listSQL, "listOwner": listOwnerSQL, "groupStates": groupStatesSQL,
	"missing": missingSQL, "markDeleted": markDeletedSQL, "toPurge": toPurgeSQL, "purgeFailed": purgeFailedSQL,
	"purgeAdds": purgeAddsSQL, "purgeGroups": purgeGroupsSQL, "reapCandidates": reapCandidatesSQL,
	"reapVerdict": reapVerdictSQL, "deferReap": deferReapSQL, "dueWebhooks": dueWebhooksSQL,
	"nextWebhook": nextWebhookSQL, "webhookDelivered": webhookDeliveredSQL, "webhookFailed": webhookFailedSQL,
}
