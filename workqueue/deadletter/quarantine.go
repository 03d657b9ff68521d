package deadletter

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Quarantined is a reply, or a slot of one, that could not be taken.
type Quarantined struct {
	Reason  string // a short code: malformed, version, wrong_endpoint, foreign_ordinal, …
	Detail  string
	Subject string
	Run     uuid.UUID // zero when the message does not say
	Slice   uuid.UUID
	Headers map[string][]string
	Body    []byte
}

// maxQuarantinedBody bounds what is kept of a message.
const maxQuarantinedBody = 64 << 10

const insertQuarantine = `
INSERT INTO quarantine (reason, detail, subject, run_id, slice_id, headers, body) VALUES ($1, $2, $3, $4, $5, $6, $7)`

// Quarantine stores a message that could not be taken, so that its consumer can go on.
func (s Store) Quarantine(ctx context.Context, q Quarantined) error {
	headers, err := json.Marshal(pg.Sanitized(q.Headers))
	if err != nil {
		return fmt.Errorf("quarantine a message on %s: %w", q.Subject, err)
	}
	body := q.Body[:min(len(q.Body), maxQuarantinedBody)]
	if body == nil { // of an empty message: not the same as none
		body = []byte{}
	}
	_, err = s.db.Pool.Exec(ctx, insertQuarantine, pg.Plain(q.Reason), pg.Plain(q.Detail), pg.Plain(q.Subject),
		uuid.NullUUID{UUID: q.Run, Valid: q.Run != uuid.Nil}, uuid.NullUUID{UUID: q.Slice, Valid: q.Slice != uuid.Nil},
		headers, body)
	if err != nil {
		return fmt.Errorf("quarantine a message on %s: %w", q.Subject, err)
	}
	return nil
}
