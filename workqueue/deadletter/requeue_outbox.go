package deadletter

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// UnsentLetter is a requeued letter that is not known to be in the stream.
type UnsentLetter struct {
	ID       workqueue.LetterID
	Endpoint string
	Requeued int // this time included
	Headers  map[string][]string
	Body     []byte
}

const (
	// unsentBytes bounds the bodies of one reading; the first letter comes however large it is.
	unsentBytes = 8 << 20

	unsentLetters = `
SELECT id, endpoint, requeued, headers, body FROM (
    SELECT id, endpoint, requeued, headers, body, changed_at,
        sum(octet_length(body)) OVER (ORDER BY changed_at, id) - octet_length(body) AS before
    FROM (SELECT * FROM dead_letter WHERE state = 'requeued' AND sent_at IS NULL
              AND NOT endpoint = ANY($3)
          ORDER BY changed_at, id LIMIT $1) oldest
) sized WHERE before < $2
ORDER BY changed_at, id`

	lettersSent = `
UPDATE dead_letter SET sent_at = tranche_now()
WHERE id = ANY($1) AND state = 'requeued' AND sent_at IS NULL`
)

// UnsentLetters returns requeued letters that nobody has marked as sent, the oldest first: at most limit, and about
// 8 MiB. Those of the endpoints in except are left out.
func (s Store) UnsentLetters(ctx context.Context, limit int, except ...string) ([]UnsentLetter, error) {
	if except == nil {
		except = []string{}
	}
	letters, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[UnsentLetter],
		unsentLetters, limit, unsentBytes, except)
	if err != nil {
		return nil, fmt.Errorf("read requeued letters: %w", err)
	}
	return letters, nil
}

// LettersSent notes that requeued letters are in the stream.
func (s Store) LettersSent(ctx context.Context, ids []workqueue.LetterID) error {
	if _, err := s.db.Pool.Exec(ctx, lettersSent, ids); err != nil {
		return fmt.Errorf("mark %d letters as sent: %w", len(ids), err)
	}
	return nil
}

const letterUnsendable = `
UPDATE dead_letter
SET state = 'waiting', requeued = requeued - 1, changed_at = tranche_now(),
    message = 'it could not be requeued: ' || $2::text
WHERE id = $1 AND state = 'requeued' AND sent_at IS NULL`

// LetterUnsendable puts a requeued letter back that cannot be published, with the reason. It was never sent.
func (s Store) LetterUnsendable(ctx context.Context, id workqueue.LetterID, reason string) error {
	if _, err := s.db.Pool.Exec(ctx, letterUnsendable, id, pg.Plain(reason)); err != nil {
		return fmt.Errorf("put letter %s back: %w", id, err)
	}
	return nil
}
