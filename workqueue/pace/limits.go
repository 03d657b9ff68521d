package pace

import (
	"cmp"
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Bounds of an endpoint's settings. Rates are in items a second.
const (
	MaxEndpointConcurrency = 1024
	MaxEndpointInFlight    = 10_000
	MinEndpointRate        = 0.001
	MaxEndpointRate        = 10_000_000
)

// EndpointSetting is what operators set for an endpoint while its services run.
type EndpointSetting struct {
	Endpoint    string    `json:"endpoint"`
	Concurrency int       `json:"concurrency" doc:"concurrent chunks in each instance; 0 leaves it to the service"`
	MaxInFlight int       `json:"max_in_flight" doc:"requests in flight over all runs and nodes; 0: no separate limit"`
	Rate        float64   `json:"rate" doc:"items a second over all runs and nodes; 0: no limit"`
	RequestRate float64   `json:"request_rate" doc:"requests a second over all runs, collectors and nodes; 0: no limit"`
	Namespaces  []string  `json:"namespaces,omitempty" doc:"whose runs and collectors may use it; absent: all"`
	Canary      string    `json:"canary,omitempty" doc:"endpoint of a new version that gets a share of runs' requests"`
	CanaryShare float64   `json:"canary_share,omitempty" doc:"percent; 100: all"`
	CanarySince time.Time `json:"canary_since,omitzero" doc:"start of the comparison"`
	ChangedBy   string    `json:"changed_by,omitempty"`
	ChangedAt   time.Time `json:"changed_at"`
}

// EndpointChange is a change of an endpoint's settings; nil leaves a setting unchanged.
type EndpointChange struct {
	Endpoint    string   `json:"-"`
	Concurrency *int     `json:"concurrency,omitempty" minimum:"0" maximum:"1024" doc:"of each instance; 0: its own"`
	MaxInFlight *int     `json:"max_in_flight,omitempty" minimum:"0" maximum:"10000" doc:"over all runs; 0: no limit"`
	Rate        *float64 `json:"rate,omitempty" minimum:"0" doc:"items a second over all runs; 0: no limit"`
	RequestRate *float64 `json:"request_rate,omitempty" minimum:"0" doc:"requests a second in all; 0: no limit"`
	Namespaces  []string `json:"namespaces,omitzero" nullable:"false" maxItems:"100" doc:"whose runs and collectors may use it; empty: all"`
	Canary      *Canary  `json:"canary,omitempty" doc:"sends a share of runs' requests to a new version"`
	ChunkCap    *int     `json:"chunk_cap,omitempty" enum:"0" doc:"0 forgets the size above which chunks fail"`
	Breaker     *string  `json:"breaker,omitempty" enum:"closed" doc:"keeps the breaker closed for 10 minutes"`

	IfWas map[string]string `json:"if_was,omitempty" doc:"expected current values of the settings in this request, as text (of canary, its share); 409 if one differs"`
}

func (c *EndpointChange) validate() error {
	if c.Endpoint == "" || !pg.ValidText(c.Endpoint) {
		return workqueue.BadSetting("%q is not an endpoint's name", c.Endpoint)
	}
	if kind, _ := workqueue.TargetKind(c.Endpoint); kind != workqueue.KindEndpoint && c.Concurrency != nil {
		return workqueue.BadSetting("%s has no instances whose concurrency could be set: give max_in_flight or rate",
			c.Endpoint)
	}
	if n := c.Concurrency; n != nil && (*n < 0 || *n > MaxEndpointConcurrency) {
		return workqueue.BadSetting("concurrency %d of endpoint %s: give 1 to %d, or 0 for the service's own", *n, c.Endpoint,
			MaxEndpointConcurrency)
	}
	if n := c.MaxInFlight; n != nil && (*n < 0 || *n > MaxEndpointInFlight) {
		return workqueue.BadSetting("max_in_flight %d of endpoint %s: give 1 to %d requests, or 0 for no limit", *n,
			c.Endpoint, MaxEndpointInFlight)
	}
	if c.Canary != nil {
		if err := c.Canary.validate(c.Endpoint); err != nil {
			return err
		}
	}
	return c.validateRates()
}

func (c *EndpointChange) validateRates() error {
	if r := c.Rate; r != nil && *r != 0 && !(*r >= MinEndpointRate && *r <= MaxEndpointRate) { // rejects NaN, too
		return workqueue.BadSetting("rate %v of endpoint %s: give %g to %d items a second, or 0 for no limit", *r, c.Endpoint,
			MinEndpointRate, MaxEndpointRate)
	}
	if r := c.RequestRate; r != nil && *r != 0 && !(*r >= MinRequestRate && *r <= MaxRequestRate) {
		return workqueue.BadSetting("request_rate %v of endpoint %s: give %g to %d requests a second, or 0 for no limit", *r,
			c.Endpoint, MinRequestRate, MaxRequestRate)
	}
	return nil
}

const (
	settingColumns = `endpoint, concurrency, max_in_flight, rate, request_rate, namespaces, coalesce(canary, ''),
    canary_share, coalesce(canary_since, '0001-01-01Z'), changed_by, changed_at`

	// lockSetting locks the row, so that the audit entry's earlier values are right.
	makeSetting = `INSERT INTO endpoint_setting (endpoint) VALUES ($1) ON CONFLICT DO NOTHING`
	lockSetting = `SELECT ` + settingColumns + ` FROM endpoint_setting WHERE endpoint = $1 FOR NO KEY UPDATE`

	updateSetting = `
UPDATE endpoint_setting
SET concurrency = coalesce($2, concurrency), max_in_flight = coalesce($3, max_in_flight), rate = coalesce($4, rate),
    request_rate = coalesce($6, request_rate), changed_by = $5, changed_at = tranche_now(),
    namespaces = CASE WHEN $7::text[] IS NULL THEN namespaces ELSE nullif($7, '{}') END
WHERE endpoint = $1
RETURNING ` + settingColumns

	// A namespace in use here is not deleted before the commit.
	unknownNamespace = `
WITH known AS (SELECT name FROM namespace WHERE name = ANY ($1) FOR KEY SHARE)
SELECT n FROM unnest($1::text[]) n WHERE n NOT IN (SELECT name FROM known) LIMIT 1`

	// clearChunkCap locks the pace's row after the setting's; claims lock only the pace.
	clearChunkCap = `
WITH was AS MATERIALIZED (
    SELECT endpoint, chunk_cap FROM endpoint_pace WHERE endpoint = $1 AND chunk_cap IS NOT NULL FOR NO KEY UPDATE
), cleared AS (
    UPDATE endpoint_pace p SET chunk_cap = NULL, chunk_cap_until = NULL, changed_at = tranche_now()
    FROM was WHERE p.endpoint = was.endpoint
)
INSERT INTO endpoint_change (endpoint, what, before, after, reason)
SELECT endpoint, 'chunk_cap', chunk_cap::text, '', 'cleared by ' || $2::text FROM was
RETURNING before`
)

// ChangeEndpoint changes settings of an endpoint, with an audit entry, and returns all of them. Limits apply from the
// next claim on every node; nodes send the concurrency to the services. The endpoint need not exist.
func (s Store) ChangeEndpoint(ctx context.Context, change EndpointChange, actor string) (EndpointSetting, error) {
	if err := change.validate(); err != nil {
		return EndpointSetting{}, err
	}
	var after EndpointSetting
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		after, err = changeEndpoint(ctx, tx, change, pg.Plain(actor))
		return err
	})
	return after, pg.Wrap(err, "set endpoint %s", change.Endpoint)
}

func changeEndpoint(ctx context.Context, tx pgx.Tx, change EndpointChange, actor string) (EndpointSetting, error) {
	var before, after EndpointSetting
	if change.Canary != nil || change.Namespaces != nil {
		if _, err := tx.Exec(ctx, lockCanaries); err != nil {
			return after, err
		}
	}
	if _, err := tx.Exec(ctx, makeSetting, change.Endpoint); err != nil {
		return after, err
	}
	if err := tx.QueryRow(ctx, lockSetting, change.Endpoint).Scan(before.columns()...); err != nil {
		return after, err
	}
	if change.Namespaces != nil {
		unknown := &workqueue.UnknownNamespaceError{}
		err := tx.QueryRow(ctx, unknownNamespace, change.Namespaces).Scan(&unknown.Name)
		if !errors.Is(err, pgx.ErrNoRows) {
			return after, cmp.Or[error](err, unknown)
		}
	}
	row := tx.QueryRow(ctx, updateSetting, change.Endpoint, change.Concurrency, change.MaxInFlight, change.Rate, actor,
		change.RequestRate, change.Namespaces)
	if err := row.Scan(after.columns()...); err != nil {
		return after, err
	}
	if err := after.changeCanary(ctx, tx, change.Canary, actor); err != nil {
		return after, err
	}
	was, is := before.limits(), after.limits()
	if change.ChunkCap != nil {
		limit, err := forgetChunkCap(ctx, tx, change.Endpoint, actor)
		if err != nil {
			return after, err
		}
		was["chunk_cap"], is["chunk_cap"] = limit, 0
	}
	if change.Breaker != nil {
		breaker, until, err := closeByHand(ctx, tx, change.Endpoint, actor)
		if err != nil {
			return after, err
		}
		was["breaker"], is["breaker"], is["breaker_suppressed_until"] = breaker, string(workqueue.BreakerClosed), until
	}
	onlyChanges(was, is)
	if err := (&ledger.Difference{Before: was}).Expect("endpoint "+change.Endpoint, change.IfWas); err != nil {
		return after, err
	}
	return after, ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "endpoint_set", Subject: change.Endpoint,
		Before: was, After: is})
}

// onlyChanges deletes what is the same before and after, which is not audited.
func onlyChanges(was, is map[string]any) {
	for name := range is {
		if was[name] == is[name] {
			delete(was, name)
			delete(is, name)
		}
	}
}

func forgetChunkCap(ctx context.Context, tx pgx.Tx, endpoint, actor string) (limit int, err error) {
	var before string
	err = tx.QueryRow(ctx, clearChunkCap, endpoint, actor).Scan(&before)
	if err != nil {
		return 0, pg.NoRow(err, nil) // there may be none
	}
	return strconv.Atoi(before)
}

func (s *EndpointSetting) columns() []any {
	return []any{&s.Endpoint, &s.Concurrency, &s.MaxInFlight, &s.Rate, &s.RequestRate, &s.Namespaces, &s.Canary,
		&s.CanaryShare, &s.CanarySince, &s.ChangedBy, &s.ChangedAt}
}

func (s *EndpointSetting) limits() map[string]any {
	return map[string]any{"concurrency": s.Concurrency, "max_in_flight": s.MaxInFlight, "rate": s.Rate,
		"request_rate": s.RequestRate, "namespaces": strings.Join(s.Namespaces, ","), "canary": s.CanaryShare,
		"canary_endpoint": s.Canary}
}

const endpointSettings = `SELECT ` + settingColumns + ` FROM endpoint_setting ORDER BY endpoint`

// EndpointSettings returns all endpoints ever set, by name; those reset to defaults have zeros.
func (s Store) EndpointSettings(ctx context.Context) ([]EndpointSetting, error) {
	settings, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[EndpointSetting], endpointSettings)
	return settings, pg.Wrap(err, "read the settings of endpoints")
}

// MinRequestRate is the lowest request rate: about one in three hours.
const MinRequestRate = 0.0001 // requests a second

// MaxRequestRate is in requests a second.
const MaxRequestRate = 100_000

// DrainPaceCalls takes requests from the pace of an endpoint.
const DrainPaceCalls = `UPDATE endpoint_pace SET call_tokens = $2, call_tokens_at = $3 WHERE endpoint = $1`

// Bucket is a token bucket. It holds at most one second's worth. A chunk may be taken if there is any token, and may
// put the bucket into debt: over time exactly the rate passes, and a chunk need not wait for all its tokens.
type Bucket struct {
	Rate   float64 // tokens a second; 0: no limit
	Tokens float64 // negative: debt
	kept   float64 // reserved for other runs
	Bound  Bound
	Calls  bool // its tokens are requests instead of items
}

// Fill adds what has come in since the bucket was saved. A new bucket starts with one token.
func (b *Bucket) Fill(age *float64) {
	if age == nil {
		b.Tokens = 1
		return
	}
	b.Tokens = min(b.Tokens+b.Rate*max(*age, 0), max(b.Rate, 1))
}

// Open reports whether there are tokens beyond the reserve.
func (b *Bucket) Open() bool {
	if b.Calls {
		n, _ := b.CallsFree()
		return n > 0
	}
	return b.Tokens > b.kept
}

// callBurst is the part of a second whose requests may go together; it is at least one request.
const callBurst = 0.1

// callsLate is the fraction of a request that the bucket holds beyond that. Each claim comes late by milliseconds, or
// hundreds of them under load; without the fraction that time would be lost each time, and a rate of 50 a minute would
// yield 44. It is below one, so no interval admits an additional request. After a pause two requests may be close
// together.
const callsLate = 0.9

// FillCalls adds what has come in to a bucket of requests. A request needs a whole token: no minute has more
// requests than its rate plus the bucket's content, which is one, or the burst of a fast rate.
func (b *Bucket) FillCalls(age *float64) {
	b.Calls = true
	if age == nil {
		b.Tokens = 1
		return
	}
	b.Tokens = min(b.Tokens+b.Rate*max(*age, 0), max(b.Rate*callBurst, 1)+callsLate)
}

// CallsFree is how many requests may be sent now, and if none, when the next may.
func (b *Bucket) CallsFree() (n int, wait time.Duration) {
	const rounding = 1e-9
	if b.Rate <= 0 {
		return math.MaxInt32, 0
	}
	if b.Tokens >= 1-rounding {
		return int(b.Tokens + rounding), 0
	}
	return 0, time.Duration((1-b.Tokens)/b.Rate*float64(time.Second)) + time.Millisecond
}

// Spare reports whether there is no rate, or a token.
func (b *Bucket) Spare() bool { return b.Rate <= 0 || b.Tokens > 0 }

// Keep leaves the shares of others in what may be taken now.
func (b *Bucket) Keep(share, others int) {
	b.kept = max(b.Tokens, 0) * float64(others) / float64(others+share)
}

// minRateWait keeps a fast rate from being claimed in tiny chunks.
const minRateWait = 20 * time.Millisecond

// Wait is how long until the bucket is open again.
func (b *Bucket) Wait() time.Duration {
	if b.Calls {
		_, wait := b.CallsFree()
		return max(minRateWait, wait)
	}
	if b.Tokens > 0 {
		return minRateWait // others choose first from the rest
	}
	return max(minRateWait, time.Duration(-b.Tokens/b.Rate*float64(time.Second))+time.Millisecond)
}

// Bound is what kept a claim from taking more.
type Bound string
