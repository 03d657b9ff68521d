package erasure

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Messages that are kept are read, whatever run or slice they name: whether the key stands in one that a service sent
// on its own account, or in one of a run that is not there, cannot be told otherwise.

const (
	// One that waited for somebody is dropped: it cannot be requeued without its body.
	emptyLetter = `body = CASE WHEN state = 'requeued' AND sent_at IS NOT NULL THEN ''::bytea END,
    state = CASE WHEN state = 'requeued' AND sent_at IS NOT NULL THEN state ELSE 'dropped' END,
    message = 'erased', stack = '', origin = '', headers = '{}', changed_at = tranche_now()`
	letterIsEmpty = `message = 'erased' AND coalesce(octet_length(body), 0) = 0 AND headers = '{}'`

	emptyQuarantined   = `body = '', detail = 'erased', subject = '', headers = '{}'`
	quarantinedIsEmpty = `octet_length(body) = 0 AND detail = 'erased'`

	// A page of a few, for they may be 16 MiB each. Of one run or of all.
	letters = `
SELECT id::text, concat_ws(E'\n', message, stack, origin), headers, coalesce(body, '') FROM dead_letter
WHERE id > coalesce(nullif($1, ''), '00000000-0000-0000-0000-000000000000')::uuid
    AND ($2::uuid IS NULL OR run_id = $2) AND NOT (` + letterIsEmpty + `)
ORDER BY id LIMIT 8`
	eraseLetters = `UPDATE dead_letter SET ` + emptyLetter + ` WHERE id = ANY ($1::uuid[])`

	quarantined = `
SELECT id::text, concat_ws(E'\n', detail, subject), headers, body FROM quarantine
WHERE id > coalesce(nullif($1, ''), '0')::bigint AND ($2::uuid IS NULL OR run_id = $2)
    AND NOT (` + quarantinedIsEmpty + `)
ORDER BY id LIMIT 200`
	eraseQuarantine = `UPDATE quarantine SET ` + emptyQuarantined + ` WHERE id = ANY ($1::bigint[])`
)

// messages erases those in which the key stands, page by page.
func (e *erasure) messages(ctx context.Context, run *workqueue.RunID, page, erase string, into func(*Erased) *int64,
) (done Erased, err error) {
	n := needle(e.Key)
	for after := ""; ; {
		rows := pg.Rows(ctx, e.db.Pool, page, after, run)
		var found []string
		var id, said string
		var headers, body []byte
		read := 0
		_, err := pgx.ForEachRow(rows, []any{&id, &said, &headers, &body}, func() error {
			read, after = read+1, id
			if n.in([]byte(said), maxNested) || n.in(headers, maxNested) || n.in(body, maxNested) {
				found = append(found, id)
			}
			return nil
		})
		if err != nil || read == 0 {
			return done, err
		}
		if len(found) == 0 {
			continue
		}
		err = e.db.RedoOrTry(ctx, e.DryRun, func(ctx context.Context, tx pgx.Tx) error {
			var piece Erased
			tag, err := tx.Exec(ctx, erase, found)
			if err != nil {
				return err
			}
			*into(&piece) = tag.RowsAffected()
			return e.audit(ctx, tx, e.Run, &piece)
		})
		if err != nil {
			return done, err
		}
		*into(&done) += int64(len(found))
	}
}
