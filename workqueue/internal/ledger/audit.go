// Package ledger writes what accompanies a change in its transaction: audit entries, documents, events, and the
// check that the leader still has its lease.
package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Action is an operator's action, for the audit log.
type Action struct {
	Actor   string
	Name    string          // the action: start, pause, endpoint_set, …
	Run     workqueue.RunID // zero if it is not about one run
	Subject string          // what it is about instead, like an endpoint or a plan
	Detail  map[string]any
	Before  map[string]any // earlier values of what it changes; nil: none
	After   map[string]any
}

const insertAudit = `
INSERT INTO audit_log (actor, action, run_id, subject, detail, before, after, origin)
SELECT u.actor, u.action, nullif(u.run, '00000000-0000-0000-0000-000000000000'::uuid), u.subject, u.detail, u.before,
    u.after, u.origin
FROM unnest($1::text[], $2::text[], $3::uuid[], $4::text[], $5::jsonb[], $6::jsonb[], $7::jsonb[], $8::jsonb[])
    AS u (actor, action, run, subject, detail, before, after, origin)`

// Origin returns the document of a context's origin; nil if it has none.
func Origin(ctx context.Context) []byte {
	o := workqueue.OriginOf(ctx)
	if o == (workqueue.Origin{}) {
		return nil
	}
	doc, _ := json.Marshal(o) // texts only
	return doc
}

// AddReason adds the reason of an action, if there is one, to its detail.
func AddReason(detail map[string]any, reason string) {
	if reason != "" {
		detail["reason"] = pg.Plain(reason)
	}
}

// AuditChange records an action in its transaction, in the audit log and with its request.
func AuditChange(ctx context.Context, tx pgx.Tx, a Action) error {
	docs := make([][]byte, 3)
	for i, m := range []map[string]any{a.Detail, a.Before, a.After} {
		if m == nil {
			continue
		}
		var err error
		if docs[i], err = json.Marshal(m); err != nil {
			return fmt.Errorf("audit %s: %w", a.Name, err)
		}
	}
	if docs[0] == nil {
		docs[0] = []byte("{}")
	}
	err := pg.JoinOne(ctx, tx, insertAudit,
		pg.Row(pg.Plain(a.Actor), a.Name, a.Run, pg.Plain(a.Subject), docs[0], docs[1], docs[2], Origin(ctx))...)
	if err != nil {
		return fmt.Errorf("audit %s: %w", a.Name, err)
	}
	if act, ok := ctx.Value(ActKey{}).(*Confirmed); ok {
		act.Changed = true
		if !act.Later {
			if err := act.Settle(ctx, tx); err != nil {
				return err
			}
		}
	}
	return NoteCarriedOut(ctx, tx,
		workqueue.CarriedOut{Action: a.Name, Subject: pg.Plain(a.Subject), Run: pg.UnlessZero(a.Run)})
}

// ActKey is the key of a [Confirmed] in a context.
type ActKey struct{}

// Confirmed is an administrator's act that another one confirmed. Its change settles it in the same transaction, so
// that it is done once.
type Confirmed struct {
	ID, By  string
	Later   bool // it takes several transactions, and may be repeated: it is settled after the last
	Changed bool // there was a change, maybe undone
}

// Of two confirmations, the second waits for the row, and finds it settled. An act of several transactions is done even
// if it was rejected meanwhile.
const settleAct = `
UPDATE admin_act SET state = 'done', settled_by = $2, settled_at = tranche_now(), input = NULL, preview = NULL
WHERE id = $1 AND (state = 'running' OR state = 'pending' AND expires_at > tranche_now() OR $3 AND state = 'rejected')`

// Settle marks the act done, or returns a [workqueue.ConflictError] if it no longer awaits that.
func (c *Confirmed) Settle(ctx context.Context, tx pgx.Tx) error {
	tag, err := tx.Exec(ctx, settleAct, c.ID, pg.Plain(c.By), c.Later)
	if err == nil && tag.RowsAffected() == 0 {
		err = workqueue.Conflict("act %s: it was settled meanwhile, or has expired", c.ID)
	}
	return pg.Wrap(err, "settle act %s", c.ID)
}

// Difference is what a change made different, for the audit log and users.
type Difference struct{ Before, After map[string]any }

// Add adds a setting if its value changes.
func (d *Difference) Add(name string, before, after any) {
	if before == after {
		return
	}
	if d.Before == nil {
		d.Before, d.After = map[string]any{}, map[string]any{}
	}
	d.Before[name], d.After[name] = before, after
}

// Expect returns a [*workqueue.ChangedError] if a change replaces another value than expected; values are text.
func (d *Difference) Expect(of string, values map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if has, changes := d.Before[name]; changes && !same(asText(has), values[name]) {
			return &workqueue.ChangedError{Of: of, Setting: name, Want: values[name], Has: asText(has)}
		}
	}
	return nil
}

func asText(value any) string {
	if f, ok := value.(float64); ok {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return fmt.Sprint(value)
}

func same(has, want string) bool {
	has, _, _ = strings.Cut(has, ", at most") // follows auto
	want, _, _ = strings.Cut(want, ", at most")
	if at, err := time.Parse(time.RFC3339, want); err == nil {
		want = at.UTC().Format(time.RFC3339)
	}
	if slices.Contains([]string{"", "none", "default"}, want) {
		return has == "" || has == "0"
	}
	x, err := strconv.ParseFloat(has, 64)
	y, bad := strconv.ParseFloat(want, 64)
	return has == want || err == nil && bad == nil && x == y
}

// Join adds the differences of one step, under its name if there are several.
func (d *Difference) Join(of *Difference, step string, several bool) {
	for name, before := range of.Before {
		if several {
			d.Add(step+"."+name, before, of.After[name])
		} else {
			d.Add(name, before, of.After[name])
		}
	}
}

// The row stays locked until the end of the transaction, so that a change about to commit is not taken for undone.
const carryOut = `
UPDATE api_request SET committed_action = coalesce(committed_action, $4)
WHERE user_name = $1 AND key = $2 AND claim = $3`

// ClaimKey is the key of a [workqueue.RequestClaim] in a context.
type ClaimKey struct{}

// Claimed reports whether a change under the context will be recorded with its request.
func Claimed(ctx context.Context) bool {
	_, ok := ctx.Value(ClaimKey{}).(*workqueue.RequestClaim)
	return ok
}

// NoteCarriedOut records a change with its request, if that has a key. It comes last in a transaction.
func NoteCarriedOut(ctx context.Context, tx pgx.Tx, done workqueue.CarriedOut) error {
	claim, ok := ctx.Value(ClaimKey{}).(*workqueue.RequestClaim)
	if !ok {
		return nil
	}
	tag, err := tx.Exec(ctx, carryOut, claim.User, claim.Key, claim.ID, done)
	if err == nil && tag.RowsAffected() == 0 {
		err = workqueue.ErrClaimLost
	}
	return pg.Wrap(err, "note that request %q was carried out", claim.Key)
}

const insertEvent = `
INSERT INTO run_event (id, run_id, generation, kind, payload, at)
SELECT u.id, u.run, u.generation, u.kind, u.payload, coalesce(u.at, tranche_now())
FROM unnest($1::uuid[], $2::uuid[], $3::integer[], $4::text[], $5::jsonb[], $6::timestamptz[])
    AS u (id, run, generation, kind, payload, at)`

// AddEvent adds an event of a run, to be published after the commit.
func AddEvent(ctx context.Context, tx pgx.Tx, run workqueue.RunID, gen workqueue.Generation, kind workqueue.EventKind,
	payload map[string]any,
) error {
	_, err := AddEventAs(ctx, tx, workqueue.Event{ID: uuid.Must(uuid.NewV7()), Run: run, Generation: gen, Kind: kind},
		payload)
	return err
}

// AddEventAs adds an event with its ID and a time given by PostgreSQL, and returns it with its payload. The zero time
// means that of the insert.
func AddEventAs(ctx context.Context, tx pgx.Tx, e workqueue.Event, payload map[string]any) (workqueue.Event, error) {
	var err error
	if e.Payload, err = json.Marshal(payload); err == nil {
		err = pg.JoinOne(ctx, tx, insertEvent, pg.Row(e.ID, e.Run, e.Generation, string(e.Kind), []byte(e.Payload),
			pg.UnlessZero(e.At))...)
	}
	return e, pg.Wrap(err, "event %s of run %s", e.Kind, e.Run)
}
