package health

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// ConditionKey names something that a person should see to.
type ConditionKey struct{ Kind, Subject string }

// KeptCondition says since when a condition has been seen. It is kept for those of which nothing else in the database
// tells it.
type KeptCondition struct {
	ConditionKey

	Since  time.Time
	SeenAt time.Time       // within a minute, while somebody looks
	Said   json.RawMessage // what a server says of itself that no other one can see; nil: each sees it for itself
}

const (
	// Whoever saw it first has said since when. Rows are locked in the order of the key.
	keepConditions = `
INSERT INTO health_condition AS h (kind, subject, since, said)
SELECT kind, subject, since, said
FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::jsonb[]) AS f (kind, subject, since, said)
ORDER BY 1, 2
ON CONFLICT (kind, subject) DO UPDATE SET seen_at = tranche_now(), said = excluded.said`

	// What somebody else has seen since this look began stays. The lock order is that of the keeping.
	forgetConditions = `
DELETE FROM health_condition h
USING (SELECT h.kind, h.subject FROM health_condition h
       JOIN unnest($1::text[], $2::text[]) AS f (kind, subject) USING (kind, subject)
       WHERE h.seen_at < $3 ORDER BY 1, 2 FOR UPDATE OF h) gone
WHERE h.kind = gone.kind AND h.subject = gone.subject`
)

// KeepConditions notes conditions that are there, with since when they are unless that is known already; and forgets
// those that a look, begun at a time of the database's clock, has found gone.
func (s Store) KeepConditions(ctx context.Context, there []KeptCondition, gone []ConditionKey, begun time.Time) error {
	if len(there) == 0 && len(gone) == 0 {
		return nil
	}
	var since []time.Time
	var keys []ConditionKey
	var said []json.RawMessage
	for _, c := range there {
		keys, since, said = append(keys, c.ConditionKey), append(since, c.Since), append(said, c.Said)
	}
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		kinds, subjects := conditionColumns(keys)
		if _, err := tx.Exec(ctx, keepConditions, kinds, subjects, since, said); err != nil {
			return err
		}
		kinds, subjects = conditionColumns(gone)
		_, err := tx.Exec(ctx, forgetConditions, kinds, subjects, begun)
		return err
	})
	if err != nil {
		return fmt.Errorf("keep the health's conditions: %w", err)
	}
	return nil
}

func conditionColumns(keys []ConditionKey) (kinds, subjects []string) {
	for _, k := range keys {
		kinds, subjects = append(kinds, k.Kind), append(subjects, k.Subject)
	}
	return kinds, subjects
}
