package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const insertEvent = `
INSERT INTO run_event (id, run_id, generation, kind, payload, at)
SELECT u.id, u.run, u.generation, u.kind, u.payload, coalesce(u.at, tranche_now())
FROM unnest($1::uuid[], $2::uuid[], $3::integer[], $4::text[], $5::jsonb[], $6::timestamptz[])
    AS u (id, run, generation, kind, payload, at)`

// AddEvent adds an event of a run, to be published after the commit.
func AddEvent(ctx context.Context, tx pgx.Tx, run workqueue.RunID, gen workqueue.Generation, kind workqueue.EventKind,
	payload map[string]any,
) error {
	_, err := AddEventAt(ctx, tx, run, gen, kind, time.Time{}, payload)
	return err
}

// AddEventAt adds an event with a time given by PostgreSQL, and returns it. The zero time means that of the insert.
func AddEventAt(ctx context.Context, tx pgx.Tx, run workqueue.RunID, gen workqueue.Generation, kind workqueue.EventKind,
	at time.Time,
	payload map[string]any,
) (workqueue.Event, error) {
	doc, err := json.Marshal(payload)
	e := workqueue.Event{ID: eventID(run, gen, kind), Run: run, Generation: gen, Kind: kind, Payload: doc, At: at}
	told := &e.At
	if at.IsZero() {
		told = nil
	}
	if err == nil {
		err = pg.JoinOne(ctx, tx, insertEvent, pg.Row(e.ID, run, gen, string(kind), doc, told)...)
	}
	return e, pg.Wrap(err, "event %s of run %s", kind, run)
}

// eventID returns an event's ID. A completion's is derived from its run and generation: a database that lost recent
// commits completes runs again, and readers must recognize that event.
func eventID(run workqueue.RunID, gen workqueue.Generation, kind workqueue.EventKind) uuid.UUID {
	if kind != workqueue.EventCompleted {
		return uuid.Must(uuid.NewV7())
	}
	return uuid.NewSHA1(uuid.UUID(run), fmt.Appendf(nil, "%d.%s", gen, kind))
}
