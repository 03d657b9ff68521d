package identity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// ActKinds are the kinds of administrators' acts that another administrator can be required to confirm.
func ActKinds() []string { return []string{"erase", "retention", "tokens", "delete"} }

// ActLife is how long an act can be confirmed.
const ActLife = 24 * time.Hour

// Act is an administrator's act that another one must confirm: a request to the API.
type Act struct {
	ID        string          `json:"id"`
	Kind      string          `json:"kind" enum:"erase,retention,tokens,delete"`
	What      string          `json:"what" doc:"the operation in words"`
	Method    string          `json:"method"`
	Path      string          `json:"path" doc:"of the request that is made when it is confirmed"`
	Input     json.RawMessage `json:"input,omitempty" doc:"body of that request; absent: none, or the act is settled"`
	Preview   json.RawMessage `json:"preview,omitempty" doc:"what a dry run answered, or what it would change; absent: unknown"`
	AskedBy   string          `json:"asked_by"`
	AskedAt   time.Time       `json:"asked_at"`
	ExpiresAt time.Time       `json:"expires_at" doc:"until when it can be confirmed"`
	State     string          `json:"state" enum:"pending,expired,running,done,rejected"`
	SettledBy string          `json:"settled_by,omitempty" doc:"who confirmed or rejected it"`
	SettledAt *time.Time      `json:"settled_at,omitempty"`
	Yours     bool            `json:"yours,omitempty" doc:"the caller cannot confirm it: they asked, or are not independent of who did"`

	eyes    []string
	attempt uuid.UUID // that [Store.BeginAct] began
}

const actColumns = ` id::text, kind, what, method, path, coalesce(input, ''), coalesce(preview, ''), asked_by, asked_at,
    expires_at, CASE WHEN state = 'pending' AND expires_at <= tranche_now() THEN 'expired' ELSE state END,
    settled_by, settled_at, eyes`

func scanAct(row pgx.CollectableRow) (a Act, err error) {
	var input, preview string
	err = row.Scan(&a.ID, &a.Kind, &a.What, &a.Method, &a.Path, &input, &preview, &a.AskedBy, &a.AskedAt, &a.ExpiresAt,
		&a.State, &a.SettledBy, &a.SettledAt, &a.eyes)
	if input != "" {
		a.Input = json.RawMessage(input)
	}
	if preview != "" {
		a.Preview = json.RawMessage(preview)
	}
	return a, err
}

const tokenMakers = `SELECT makers FROM api_token WHERE id = $1`

// Eyes returns the names that count as the same person as a caller: their own, and the makers of their token, who may
// know its secret. Names are unique regardless of case.
func (s Store) Eyes(ctx context.Context, name string, token *TokenID) ([]string, error) {
	eyes := []string{strings.ToLower(pg.Plain(name))}
	if token == nil {
		return eyes, nil
	}
	makers, err := pg.One(ctx, s.db.Pool, pgx.RowTo[[]string], tokenMakers, *token)
	if err != nil {
		return nil, fmt.Errorf("look up who made token %s: %w", token, err)
	}
	return append(eyes, makers...), nil
}

// MaxPendingActs is how many acts of one person can be pending.
const MaxPendingActs = 100

const insertAct = `
INSERT INTO admin_act (id, kind, what, method, path, input, preview, asked_by, eyes, expires_at, token_id, subject)
SELECT $1, $2, $3, $4, $5, nullif($6, ''), nullif($7, ''), $8, $9, tranche_now() + $10::interval, $11,
    (SELECT subject FROM web_session WHERE hash = $12 AND $11::uuid IS NULL)
WHERE (SELECT count(*) FROM admin_act WHERE state = 'pending' AND expires_at > tranche_now() AND eyes && $9) < $13
RETURNING` + actColumns

// Asker is who requests an act: their eyes, which cannot confirm it, and the credential that must still be valid then.
type Asker struct {
	Eyes    []string
	Token   *TokenID // also that of a session
	Session []byte   // hash of the session's cookie
}

// AskAct saves an act, with an audit entry.
func (s Store) AskAct(ctx context.Context, a Act, by Asker) (out Act, err error) {
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		out, err = pg.One(ctx, tx, scanAct, insertAct, uuid.New(), a.Kind, a.What, a.Method, a.Path, string(a.Input),
			string(a.Preview), pg.Plain(a.AskedBy), by.Eyes, ActLife, by.Token, by.Session, MaxPendingActs)
		if errors.Is(err, pgx.ErrNoRows) {
			return workqueue.Conflict("act %s: %s has %d pending acts; withdraw some: tranche act reject", a.What, a.AskedBy,
				MaxPendingActs)
		}
		if err != nil {
			return err
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: a.AskedBy, Name: "act_ask", Subject: out.ID,
			Detail: map[string]any{"what": a.What, "kind": a.Kind, "expires_at": out.ExpiresAt}})
	})
	if err != nil {
		return Act{}, fmt.Errorf("save an act to be confirmed: %w", err)
	}
	out.Yours = true
	return out, nil
}

// MaxActs bounds what Acts lists.
const MaxActs = 500

// Few rows: MaxPendingActs for each administrator, and those of 30 days.
const listActs = `SELECT` + actColumns + ` FROM admin_act
ORDER BY settled_at IS NULL AND (state = 'running' OR expires_at > tranche_now()) DESC, asked_at DESC, id LIMIT $1`

// Acts lists up to MaxActs acts, those that can be confirmed first, then the newest, as seen by the given eyes.
func (s Store) Acts(ctx context.Context, eyes []string) ([]Act, error) {
	all, err := pg.Collect(ctx, s.db.Pool, scanAct, listActs, MaxActs)
	if err != nil {
		return nil, fmt.Errorf("list acts: %w", err)
	}
	for i := range all {
		all[i].Yours = all[i].sameEyes(eyes)
	}
	return all, nil
}

// Whoever made both tokens can use both: one common name is enough.
func (a *Act) sameEyes(eyes []string) bool {
	return slices.ContainsFunc(eyes, func(name string) bool { return slices.Contains(a.eyes, name) })
}

const findActs = `SELECT` + actColumns + ` FROM admin_act WHERE id BETWEEN $1 AND $2 LIMIT 2`

// Act finds an act by its ID or the beginning of it, as seen by the given eyes.
func (s Store) Act(ctx context.Context, ref string, eyes []string) (Act, error) {
	none := fmt.Errorf("no act has ID %q: %w", ref, workqueue.ErrNotFound)
	low, high, ok := pg.PrefixRange(strings.TrimSpace(ref))
	if !ok {
		return Act{}, none
	}
	found, err := pg.Collect(ctx, s.db.Pool, scanAct, findActs, low, high)
	switch {
	case err != nil:
		return Act{}, fmt.Errorf("look up act %q: %w", ref, err)
	case len(found) == 0:
		return Act{}, none
	case len(found) > 1:
		return Act{}, workqueue.Conflict("act %s: several begin like this; give more of the ID", ref)
	}
	found[0].Yours = found[0].sameEyes(eyes)
	return found[0], nil
}

// Pending returns a [*workqueue.ConflictError] unless the act can be confirmed.
func (a *Act) Pending() error {
	switch {
	case a.State == "expired":
		return workqueue.Conflict("act %s: it has expired; ask again", a.ID)
	case a.State != "pending" && a.State != "running":
		return workqueue.Conflict("act %s: it is %s already, by %s", a.ID, a.State, a.SettledBy)
	}
	return nil
}

type actKey struct{}

type confirmation struct {
	act  *Act
	eyes []string
}

// ActEyes returns who requested and confirmed the act of a context, as [Store.Eyes] does; nil without one.
func ActEyes(ctx context.Context) []string {
	c, _ := ctx.Value(actKey{}).(confirmation)
	return c.eyes
}

// ActOf returns the act that a context confirms; nil: none.
func ActOf(ctx context.Context) *Act {
	c, _ := ctx.Value(actKey{}).(confirmation)
	return c.act
}

// Confirming returns a context whose first audited change settles the act, confirmed by a caller with these eyes; an
// erasure is in several transactions, and [Store.SettleAct] settles it. The second value says whether it changed
// anything.
func Confirming(ctx context.Context, act *Act, by string, eyes []string) (context.Context, *ledger.Confirmed) {
	o := workqueue.OriginOf(ctx)
	o.Act, o.ConfirmedBy = act.ID, by
	ctx = context.WithValue(ctx, actKey{}, confirmation{act, slices.Concat(act.eyes, eyes)})
	settles := &ledger.Confirmed{ID: act.ID, By: by, Later: act.Kind == "erase"}
	return context.WithValue(workqueue.WithOrigin(ctx, o), ledger.ActKey{}, settles), settles
}

// A person of an identity provider has a session for as long as that confirms them.
const askerValid = `
(EXISTS (SELECT FROM api_token t WHERE t.id = a.token_id AND t.role = 'admin'
        AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > tranche_now()))
    OR EXISTS (SELECT FROM web_session s WHERE s.token_id IS NULL AND s.subject = a.subject AND s.role = 'admin'
        AND least(s.expires_at, ` + vouchedFor + ` + $3::interval) > tranche_now()))`

// An erasure runs until it is done, also after a crash: only its first attempt can return it to pending, unless there
// was a second.
const beginAct = `
UPDATE admin_act a SET state = CASE kind WHEN 'erase' THEN 'running' ELSE state END,
    attempt = CASE state WHEN 'pending' THEN $2::uuid END
WHERE id = $1 AND (state = 'running' OR state = 'pending' AND expires_at > tranche_now())
RETURNING coalesce(token_id::text, ''), ` + askerValid

// BeginAct begins to carry out an act; an erasure becomes running. It returns a [*workqueue.ConflictError] if the act
// is settled, or the requester's credential is no longer valid.
func (s Store) BeginAct(ctx context.Context, act *Act) error {
	act.attempt = uuid.New()
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var token string
		var valid bool
		err := tx.QueryRow(ctx, beginAct, act.ID, act.attempt, ProviderTime).Scan(&token, &valid)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return workqueue.Conflict("act %s: it was settled meanwhile, or has expired", act.ID)
		case err == nil && !valid && token == "":
			return workqueue.Conflict("act %s: %s, who requested it, is no longer logged in as an admin; confirm it again "+
				"after they log in", act.ID, act.AskedBy)
		case err == nil && !valid:
			return workqueue.Conflict("act %s: %s requested it with token %s, which was revoked or has expired; reject it, "+
				"and request it again with a valid one", act.ID, act.AskedBy, token)
		}
		return err
	})
	return pg.Wrap(err, "begin act %s", act.ID)
}

const haltAct = `
UPDATE admin_act SET state = 'pending', attempt = NULL WHERE id = $1 AND state = 'running' AND attempt = $2`

// HaltAct returns an act that was begun and changed nothing to pending.
func (s Store) HaltAct(ctx context.Context, act *Act) error {
	_, err := s.db.Pool.Exec(ctx, haltAct, act.ID, act.attempt)
	return pg.Wrap(err, "return act %s to pending", act.ID)
}

// SettleAct marks an act done.
func (s Store) SettleAct(ctx context.Context, done *ledger.Confirmed) error {
	return s.db.InTx(ctx, done.Settle)
}

const rejectAct = `
UPDATE admin_act a SET state = 'rejected', settled_by = $2, settled_at = tranche_now(), input = NULL, preview = NULL
WHERE id = $1 AND (state = 'pending' OR state = 'running' AND NOT ` + askerValid + `)
RETURNING` + actColumns

// RejectAct rejects a pending act, or a running one that cannot be confirmed again, with an audit entry.
func (s Store) RejectAct(ctx context.Context, act *Act, actor string) (out Act, err error) {
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		out, err = pg.One(ctx, tx, scanAct, rejectAct, act.ID, pg.Plain(actor), ProviderTime)
		if err := pg.NoRow(err, workqueue.Conflict("act %s: it is running, or settled already", act.ID)); err != nil {
			return err
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "act_reject", Subject: act.ID,
			Detail: map[string]any{"what": act.What, "asked_by": act.AskedBy}})
	})
	return out, pg.Wrap(err, "reject act %s", act.ID)
}
