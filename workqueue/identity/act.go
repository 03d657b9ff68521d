package identity

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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
	Preview   json.RawMessage `json:"preview,omitempty" doc:"what a dry run answered; absent: there is none"`
	Hash      string          `json:"hash" doc:"SHA-256 of the request, also in the audit log"`
	AskedBy   string          `json:"asked_by"`
	AskedAt   time.Time       `json:"asked_at"`
	ExpiresAt time.Time       `json:"expires_at" doc:"until when it can be confirmed"`
	State     string          `json:"state" enum:"pending,expired,done,rejected"`
	SettledBy string          `json:"settled_by,omitempty" doc:"who confirmed or rejected it"`
	SettledAt *time.Time      `json:"settled_at,omitempty"`
	Yours     bool            `json:"yours,omitempty" doc:"the caller cannot confirm it: they asked, or are not independent of who did"`

	eyes []string
}

const actColumns = ` id::text, kind, what, method, path, coalesce(input, ''), coalesce(preview::text, ''), encode(hash, 'hex'),
    asked_by, asked_at, expires_at,
    CASE WHEN state = 'pending' AND expires_at <= tranche_now() THEN 'expired' ELSE state END,
    settled_by, settled_at, eyes`

func scanAct(row pgx.CollectableRow) (a Act, err error) {
	var input, preview string
	err = row.Scan(&a.ID, &a.Kind, &a.What, &a.Method, &a.Path, &input, &preview, &a.Hash, &a.AskedBy, &a.AskedAt,
		&a.ExpiresAt, &a.State, &a.SettledBy, &a.SettledAt, &a.eyes)
	if input != "" {
		a.Input = json.RawMessage(input)
	}
	if preview != "" {
		a.Preview = json.RawMessage(preview)
	}
	return a, err
}

func (a *Act) sum() [sha256.Size]byte {
	return sha256.Sum256([]byte(a.Method + "\x00" + a.Path + "\x00" + string(a.Input)))
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

const insertAct = `
INSERT INTO admin_act (id, kind, what, method, path, input, preview, hash, asked_by, eyes, expires_at)
VALUES ($1, $2, $3, $4, $5, nullif($6, ''), nullif($7, '')::jsonb, $8, $9, $10, tranche_now() + $11::interval)
RETURNING` + actColumns

// AskAct saves an act, with an audit entry. Its eyes cannot confirm it.
func (s Store) AskAct(ctx context.Context, a Act, eyes []string) (out Act, err error) {
	sum := a.sum()
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		out, err = pg.One(ctx, tx, scanAct, insertAct, uuid.New(), a.Kind, a.What, a.Method, a.Path, string(a.Input),
			string(a.Preview), sum[:], pg.Plain(a.AskedBy), eyes, ActLife)
		if err != nil {
			return err
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: a.AskedBy, Name: "act_ask", Subject: out.ID,
			Detail: map[string]any{"what": a.What, "kind": a.Kind, "sha256": out.Hash, "expires_at": out.ExpiresAt}})
	})
	if err != nil {
		return Act{}, fmt.Errorf("save an act to be confirmed: %w", err)
	}
	out.Yours = true
	return out, nil
}

// MaxActs bounds what Acts lists.
const MaxActs = 500

// By admin_act_asked.
const listActs = `SELECT` + actColumns + ` FROM admin_act ORDER BY asked_at DESC, id LIMIT $1`

// Acts lists the newest MaxActs acts, as seen by the given eyes.
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
		return Act{}, &workqueue.ActError{Act: ref, Detail: "several begin like this; give more of the ID"}
	}
	found[0].Yours = found[0].sameEyes(eyes)
	return found[0], nil
}

// Pending returns an [*workqueue.ActError] unless the act can be confirmed.
func (a *Act) Pending() error {
	sum := a.sum()
	switch {
	case a.State == "expired":
		return &workqueue.ActError{Act: a.ID, Detail: "it has expired; ask again"}
	case a.State != "pending":
		return &workqueue.ActError{Act: a.ID, Detail: "it is " + a.State + " already, by " + a.SettledBy}
	case hex.EncodeToString(sum[:]) != a.Hash:
		return &workqueue.ActError{Act: a.ID, Detail: "it is not what was asked for: its hash differs; reject it"}
	}
	return nil
}

type actEyesKey struct{}

// ActEyes returns who asked for and confirmed the act of a context, as [Store.Eyes] does; nil without one.
func ActEyes(ctx context.Context) []string {
	eyes, _ := ctx.Value(actEyesKey{}).([]string)
	return eyes
}

// Confirming returns a context whose first audited change settles the act, confirmed by a caller with these eyes; with
// later, [Store.SettleAct] settles it.
func Confirming(ctx context.Context, act *Act, by string, eyes []string, later bool) context.Context {
	o := workqueue.OriginOf(ctx)
	o.Act, o.ConfirmedBy = act.ID, by
	ctx = context.WithValue(ctx, actEyesKey{}, slices.Concat(act.eyes, eyes))
	return context.WithValue(workqueue.WithOrigin(ctx, o), ledger.ActKey{}, ledger.Confirmed{ID: act.ID, By: by, Later: later})
}

// SettleAct marks an act done if its change did not.
func (s Store) SettleAct(ctx context.Context, act *Act, by string) error {
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		return ledger.Confirmed{ID: act.ID, By: by}.Settle(ctx, tx)
	})
	if _, done := errors.AsType[*workqueue.ActError](err); done {
		return nil
	}
	return err
}

const rejectAct = `
UPDATE admin_act SET state = 'rejected', settled_by = $2, settled_at = tranche_now(), input = NULL, preview = NULL
WHERE id = $1 AND state = 'pending'
RETURNING` + actColumns

// RejectAct rejects a pending act, with an audit entry.
func (s Store) RejectAct(ctx context.Context, act *Act, actor string) (out Act, err error) {
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		out, err = pg.One(ctx, tx, scanAct, rejectAct, act.ID, pg.Plain(actor))
		if errors.Is(err, pgx.ErrNoRows) {
			return &workqueue.ActError{Act: act.ID, Detail: "it is settled already"}
		}
		if err != nil {
			return err
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "act_reject", Subject: act.ID,
			Detail: map[string]any{"what": act.What, "asked_by": act.AskedBy}})
	})
	if err != nil {
		return Act{}, fmt.Errorf("reject act %s: %w", act.ID, err)
	}
	return out, nil
}
