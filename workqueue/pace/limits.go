package pace

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const (
	// MaxEndpointConcurrency bounds what may be set as an endpoint's concurrency.
	MaxEndpointConcurrency = 1024
	// MaxEndpointInFlight bounds what may be set as an endpoint's budget of requests.
	MaxEndpointInFlight = 10_000
	// MinEndpointRate is the lowest rate that may be set for an endpoint, in items a second.
	MinEndpointRate = 0.001
	// MaxEndpointRate is the highest.
	MaxEndpointRate = 10_000_000
)

// EndpointSetting is what operators set for an endpoint while its services run.
type EndpointSetting struct {
	Endpoint    string    `json:"endpoint"`
	Concurrency int       `json:"concurrency" doc:"chunks at once in each instance; 0 leaves it to the service"`
	MaxInFlight int       `json:"max_in_flight" doc:"requests at once over all runs and nodes; 0: no limit of its own"`
	Rate        float64   `json:"rate" doc:"items a second over all runs and nodes; 0: no limit"`
	RequestRate float64   `json:"request_rate" doc:"requests a second over all runs, collectors and nodes; 0: no limit"`
	ChangedBy   string    `json:"changed_by,omitempty"`
	ChangedAt   time.Time `json:"changed_at"`
}

// EndpointChange is what to change of an endpoint's settings; nil leaves a setting as it is.
type EndpointChange struct {
	Endpoint      string
	Concurrency   *int
	MaxInFlight   *int
	Rate          *float64
	RequestRate   *float64
	ClearChunkCap bool // forget that chunks above some size fail as a whole
	CloseBreaker  bool // it is no outage: send again, and let nothing open the breaker for ten minutes
}

func (c *EndpointChange) validate() error {
	if c.Endpoint == "" || !pg.ValidText(c.Endpoint) {
		return &workqueue.SettingError{Detail: fmt.Sprintf("%q is no endpoint's name", c.Endpoint)}
	}
	if kind, _ := workqueue.TargetKind(c.Endpoint); kind != workqueue.KindEndpoint && c.Concurrency != nil {
		return &workqueue.SettingError{Detail: fmt.Sprintf(
			"%s has no instances whose concurrency could be set: give max_in_flight or rate",
			c.Endpoint)}
	}
	if n := c.Concurrency; n != nil && (*n < 0 || *n > MaxEndpointConcurrency) {
		return &workqueue.SettingError{Detail: fmt.Sprintf(
			"concurrency %d of endpoint %s: give 1 to %d, or 0 for the service's own",
			*n, c.Endpoint, MaxEndpointConcurrency)}
	}
	if n := c.MaxInFlight; n != nil && (*n < 0 || *n > MaxEndpointInFlight) {
		return &workqueue.SettingError{Detail: fmt.Sprintf(
			"max_in_flight %d of endpoint %s: give 1 to %d requests, or 0 for no limit",
			*n, c.Endpoint, MaxEndpointInFlight)}
	}
	if r := c.Rate; r != nil && *r != 0 && !(*r >= MinEndpointRate && *r <= MaxEndpointRate) { // so that NaN is refused
		return &workqueue.SettingError{Detail: fmt.Sprintf(
			"rate %v of endpoint %s: give %g to %d items a second, or 0 for no limit",
			*r, c.Endpoint, MinEndpointRate, MaxEndpointRate)}
	}
	return c.validateCalls()
}

func (c *EndpointChange) validateCalls() error {
	if r := c.RequestRate; r != nil && *r != 0 && !(*r >= MinRequestRate && *r <= MaxRequestRate) {
		return &workqueue.SettingError{Detail: fmt.Sprintf(
			"request_rate %v of endpoint %s: give %g to %d requests a second, or 0 for no limit",
			*r, c.Endpoint, MinRequestRate, MaxRequestRate)}
	}
	return nil
}

const (
	// lockSetting makes sure of a row and holds it, so that what the audit calls before is what was there.
	makeSetting = `INSERT INTO endpoint_setting (endpoint) VALUES ($1) ON CONFLICT DO NOTHING`
	lockSetting = `
SELECT endpoint, concurrency, max_in_flight, rate, request_rate, changed_by, changed_at
FROM endpoint_setting WHERE endpoint = $1 FOR NO KEY UPDATE`

	updateSetting = `
UPDATE endpoint_setting
SET concurrency = coalesce($2, concurrency), max_in_flight = coalesce($3, max_in_flight), rate = coalesce($4, rate),
    request_rate = coalesce($6, request_rate), changed_by = $5, changed_at = tranche_now()
WHERE endpoint = $1
RETURNING endpoint, concurrency, max_in_flight, rate, request_rate, changed_by, changed_at`

	// clearChunkCap takes the row of the pace after that of the setting; claims lock only the pace.
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

// ChangeEndpoint changes settings of an endpoint, with a row in the audit log, and returns all of them. Limits hold
// from the next claim on, on every node; nodes bring the concurrency to the services. The name need not be known: the
// settings wait for the endpoint.
func (s Store) ChangeEndpoint(ctx context.Context, change EndpointChange, actor string) (EndpointSetting, error) {
	if err := change.validate(); err != nil {
		return EndpointSetting{}, err
	}
	var after EndpointSetting
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		after, err = changeEndpoint(ctx, tx, change, pg.Plain(actor))
		return err
	})
	if err != nil {
		return EndpointSetting{}, fmt.Errorf("set endpoint %s: %w", change.Endpoint, err)
	}
	return after, nil
}

func changeEndpoint(ctx context.Context, tx pgx.Tx, change EndpointChange, actor string) (EndpointSetting, error) {
	var before, after EndpointSetting
	if _, err := tx.Exec(ctx, makeSetting, change.Endpoint); err != nil {
		return after, err
	}
	if err := tx.QueryRow(ctx, lockSetting, change.Endpoint).Scan(before.columns()...); err != nil {
		return after, err
	}
	row := tx.QueryRow(ctx, updateSetting, change.Endpoint, change.Concurrency, change.MaxInFlight, change.Rate, actor,
		change.RequestRate)
	if err := row.Scan(after.columns()...); err != nil {
		return after, err
	}
	was, is := before.limits(), after.limits()
	if change.ClearChunkCap {
		limit, err := forgetChunkCap(ctx, tx, change.Endpoint, actor)
		if err != nil {
			return after, err
		}
		was["chunk_cap"], is["chunk_cap"] = limit, 0
	}
	if change.CloseBreaker {
		breaker, until, err := closeByHand(ctx, tx, change.Endpoint, actor)
		if err != nil {
			return after, err
		}
		was["breaker"], is["breaker"], is["breaker_suppressed_until"] = breaker, string(workqueue.BreakerClosed), until
	}
	for name := range is { // only what has changed is worth telling
		if was[name] == is[name] {
			delete(was, name)
			delete(is, name)
		}
	}
	return after, ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "endpoint_set", Subject: change.Endpoint,
		Before: was, After: is})
}

func forgetChunkCap(ctx context.Context, tx pgx.Tx, endpoint, actor string) (limit int, err error) {
	var before string
	err = tx.QueryRow(ctx, clearChunkCap, endpoint, actor).Scan(&before)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil // there was none
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(before)
}

func (s *EndpointSetting) columns() []any {
	return []any{&s.Endpoint, &s.Concurrency, &s.MaxInFlight, &s.Rate, &s.RequestRate, &s.ChangedBy, &s.ChangedAt}
}

func (s *EndpointSetting) limits() map[string]any {
	return map[string]any{"concurrency": s.Concurrency, "max_in_flight": s.MaxInFlight, "rate": s.Rate,
		"request_rate": s.RequestRate}
}

const endpointSettings = `
SELECT endpoint, concurrency, max_in_flight, rate, request_rate, changed_by, changed_at
FROM endpoint_setting ORDER BY endpoint`

// EndpointSettings returns what was ever set, ordered by endpoint; one that was set back to the default has only zeros.
func (s Store) EndpointSettings(ctx context.Context) ([]EndpointSetting, error) {
	settings, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[EndpointSetting], endpointSettings)
	if err != nil {
		return nil, fmt.Errorf("read the settings of endpoints: %w", err)
	}
	return settings, nil
}

// MinRequestRate and MaxRequestRate bound a rate of calls.
const MinRequestRate = 0.0001 // calls a second: about one in three hours

// MaxRequestRate is in calls a second.
const MaxRequestRate = 100_000

// DrainPaceCalls takes calls from the pace of an endpoint.
const DrainPaceCalls = `UPDATE endpoint_pace SET call_tokens = $2, call_tokens_at = $3 WHERE endpoint = $1`

// Bucket is a token bucket of a rate. It holds a second's worth at most. Who finds a token in it may take a chunk,
// and so run it into debt: over time exactly the rate passes, and a chunk need not wait until all of it has come in.
type Bucket struct {
	Rate   float64 // tokens a second; 0: no limit
	Tokens float64 // negative: debt
	kept   float64 // not to be taken, for others
	Bound  Bound
	Calls  bool // its tokens are requests; those of others are items
}

// Fill adds what has come in since the bucket was last written. One that never was begins with a single token: the
// first chunk goes at once, and nothing more than the rate follows it.
func (b *Bucket) Fill(age *float64) {
	if age == nil {
		b.Tokens = 1
		return
	}
	b.Tokens = min(b.Tokens+b.Rate*max(*age, 0), max(b.Rate, 1))
}

// Open reports whether there is something in it.
func (b *Bucket) Open() bool {
	if b.Calls {
		n, _ := b.CallsFree()
		return n > 0
	}
	return b.Tokens > b.kept
}

// callBurst is the part of a second whose calls a rate of calls lets pass at once; it is one call at least.
const callBurst = 0.1

// callsLate is the part of a call that the bucket holds beyond that. Whoever takes a call is late by some milliseconds,
// or by hundreds where much goes on; without it that time would be lost with each, and a rate of 50 a minute come to
// 44. It is less than a call, so that a time in which whole calls come in has none more for it. But after a pause two
// calls may come close together, a tenth of the time between calls apart.
const callsLate = 0.9

// FillCalls adds what has come in to a bucket of calls. A call needs a whole token: no minute has more calls than a
// rate of so many a minute allows and what the bucket holds, which is one, or what passes at once of a fast rate.
func (b *Bucket) FillCalls(age *float64) {
	b.Calls = true
	if age == nil {
		b.Tokens = 1
		return
	}
	b.Tokens = min(b.Tokens+b.Rate*max(*age, 0), max(b.Rate*callBurst, 1)+callsLate)
}

// CallsFree is how many calls may be made now, and in how long the next one may when there is none.
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

// Spare reports whether there is no rate, or something in the bucket.
func (b *Bucket) Spare() bool { return b.Rate <= 0 || b.Tokens > 0 }

// Keep leaves the shares of others in what may be taken now.
func (b *Bucket) Keep(share, others int) {
	b.kept = max(b.Tokens, 0) * float64(others) / float64(others+share)
}

// minRateWait keeps a fast rate from being fetched in thimbles.
const minRateWait = 20 * time.Millisecond

// Wait is how long until the bucket is open again.
func (b *Bucket) Wait() time.Duration {
	if b.Calls {
		_, wait := b.CallsFree()
		return max(minRateWait, wait)
	}
	if b.Tokens > 0 {
		return minRateWait // others have first choice of what is left
	}
	return max(minRateWait, time.Duration(-b.Tokens/b.Rate*float64(time.Second))+time.Millisecond)
}

// Bound says what kept a claim from taking more.
type Bound string
