package pginbox

import "strings"

// Schema makes the table. It does nothing where there is one.
//
// A row with neither result nor code is an item that a stage of a flow has sent on. Rows are written twice in their
// transaction, by the claim and by the answer, so pages keep room for the second version.
const Schema = `
CREATE TABLE IF NOT EXISTS tranche_inbox (
    run          uuid NOT NULL,
    place        text NOT NULL,
    generation   int NOT NULL,
    ordinal      int NOT NULL,
    result       bytea,
    content_type text,
    code         text,
    message      text,
    at           timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (run, place, generation, ordinal),
    CHECK (result IS NULL OR code IS NULL),
    CHECK ((code IS NULL) = (message IS NULL)),
    CHECK (content_type IS NULL OR result IS NOT NULL)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05)`

// lockCreation keeps instances from creating the table at the same time, which IF NOT EXISTS does not bear.
const lockCreation = `SELECT pg_advisory_xact_lock(hashtext('tranche_inbox'), hashtext($1))`

// claim inserts the rows of the items that nobody has claimed. It waits for whoever is at one of them, by the lock of
// the primary key; ORDER BY is why two chunks that overlap wait for each other in one direction only.
const claim = `
INSERT INTO tranche_inbox (run, place, generation, ordinal)
SELECT $1, $2, $3, asked.ordinal FROM unnest($4::int[]) AS asked (ordinal) ORDER BY asked.ordinal
ON CONFLICT DO NOTHING
RETURNING ordinal`

// recall reads what is remembered of items, by the primary key. Nothing is locked: a row that is there is final.
const recall = `
SELECT ordinal, result, content_type, code, message FROM tranche_inbox
WHERE run = $1 AND place = $2 AND generation = $3 AND ordinal = ANY($4::int[])`

// remember stores the answers. The rows are locked already, by their claims.
const remember = `
UPDATE tranche_inbox AS inbox
SET result = answer.result, content_type = answer.content_type, code = answer.code, message = answer.message
FROM unnest($4::int[], $5::bytea[], $6::text[], $7::text[], $8::text[])
    AS answer (ordinal, result, content_type, code, message)
WHERE inbox.run = $1 AND inbox.place = $2 AND inbox.generation = $3 AND inbox.ordinal = answer.ordinal`

// forget removes the claims of items that are to be tried again. They are locked already.
const forget = `
DELETE FROM tranche_inbox
WHERE run = $1 AND place = $2 AND generation = $3 AND ordinal = ANY($4::int[])`

// selectOldRuns reads the whole table, which is done rarely enough to go without an index.
const selectOldRuns = `SELECT DISTINCT run FROM tranche_inbox WHERE at < now() - $1::interval`

// deleteOld finds the rows by the primary key. A row that is claimed is not visible to it.
const deleteOld = `DELETE FROM tranche_inbox WHERE run = ANY($1::uuid[]) AND at < now() - $2::interval`

// statements are the constants with the name of an inbox's table.
type statements struct {
	create, claim, recall, remember, forget, selectOldRuns, deleteOld string
}

func statementsFor(table string) statements {
	of := func(statement string) string { return strings.ReplaceAll(statement, DefaultTable, table) }
	return statements{
		create: of(Schema), claim: of(claim), recall: of(recall), remember: of(remember), forget: of(forget),
		selectOldRuns: of(selectOldRuns), deleteOld: of(deleteOld),
	}
}
