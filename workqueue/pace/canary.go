package pace

import (
	"cmp"
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// WholeShare is the share, in percent, at which all requests of an endpoint go to its canary.
const WholeShare = 100

// Canary sends a share of an endpoint's requests to the endpoint of a new version.
type Canary struct {
	Endpoint string  `json:"endpoint,omitempty" doc:"endpoint of the new version; absent: the current canary"`
	Share    float64 `json:"share" minimum:"0" maximum:"100" doc:"percent of runs' requests, 0 to 100; 0 ends it"`
}

func (c *Canary) validate(endpoint string) error {
	kind, _ := workqueue.TargetKind(endpoint)
	to, _ := workqueue.TargetKind(c.Endpoint)
	switch {
	case kind != workqueue.KindEndpoint || to != workqueue.KindEndpoint:
		return workqueue.BadSetting("canary %q of %s: both must be endpoints", c.Endpoint, endpoint)
	case c.Endpoint == endpoint:
		return workqueue.BadSetting("canary %s of endpoint %s: start the new version under another name, for example "+
			"%[1]s-v2", c.Endpoint, endpoint)
	case !(c.Share >= 0 && c.Share <= WholeShare): // rejects NaN, too
		return workqueue.BadSetting("share %v of canary %s: want 0 to %d percent", c.Share, c.Endpoint, WholeShare)
	}
	return nil
}

const (
	// lockCanaries makes changes of canaries wait for each other: a chain is seen only in the rows of several.
	lockCanaries = `LOCK TABLE endpoint_setting IN SHARE ROW EXCLUSIVE MODE`

	chainOfCanaries = `
SELECT endpoint, canary FROM endpoint_setting
WHERE canary_share > 0 AND (endpoint = $2 OR canary = $1 OR canary = $2 AND endpoint <> $1) ORDER BY endpoint LIMIT 1`

	// shareLimits gives the new version the limits of the old one, unless it has its own.
	shareLimits = `
INSERT INTO endpoint_setting (endpoint, concurrency, max_in_flight, rate, request_rate, namespaces, changed_by)
SELECT $2, concurrency, max_in_flight, rate, request_rate, namespaces, $3 FROM endpoint_setting WHERE endpoint = $1
ON CONFLICT DO NOTHING`

	setCanary = `
UPDATE endpoint_setting
SET canary = $2, canary_share = $3, canary_has_listeners = true,
    canary_since = CASE WHEN canary = $2 AND canary_share > 0 THEN canary_since ELSE tranche_now() END
WHERE endpoint = $1`

	// otherNamespaces finds a canary in use that other namespaces may use than its endpoint.
	otherNamespaces = `
SELECT e.endpoint, coalesce(array_to_string(e.namespaces, ', '), 'all'), c.endpoint,
    coalesce(array_to_string(c.namespaces, ', '), 'all')
FROM endpoint_setting e JOIN endpoint_setting c ON c.endpoint = e.canary
WHERE e.canary_share > 0 AND $1 IN (e.endpoint, e.canary) AND NOT coalesce(
    e.namespaces @> c.namespaces AND e.namespaces <@ c.namespaces, e.namespaces IS NULL AND c.namespaces IS NULL)`

	// sharePace makes the new version start with what was learned of the old one.
	sharePace = `
INSERT INTO endpoint_pace AS p (endpoint, in_flight, chunk)
SELECT $2, in_flight, chunk FROM endpoint_pace WHERE endpoint = $1
ON CONFLICT (endpoint) DO UPDATE SET in_flight = greatest(p.in_flight, excluded.in_flight),
    chunk = coalesce(p.chunk, excluded.chunk), changed_at = tranche_now()`
)

// set changes the canary of an endpoint whose setting is locked. At 100% it also
// closes the endpoint's breaker: no probes would, and it would stop claims.
func (c *Canary) set(ctx context.Context, tx pgx.Tx, before *EndpointSetting, actor string) error {
	name, to := before.Endpoint, cmp.Or(c.Endpoint, before.Canary)
	switch {
	case to == "":
		return workqueue.BadSetting("endpoint %s has no canary; give --to ENDPOINT (canary.endpoint)", name)
	case before.CanaryShare > 0 && to != before.Canary:
		return workqueue.BadSetting("canary %s of endpoint %s: %v%% of the requests go to %s; end that canary first: "+
			"tranche endpoints canary %[2]s --none", to, name, before.CanaryShare, before.Canary)
	}
	if c.Share == 0 { // the times of the comparison stay
		_, err := tx.Exec(ctx, `UPDATE endpoint_setting SET canary_share = 0 WHERE endpoint = $1`, name)
		return err
	}
	var first, second string
	err := tx.QueryRow(ctx, chainOfCanaries, name, to).Scan(&first, &second)
	if err == nil {
		return workqueue.BadSetting("canary %s of endpoint %s: %s is already the canary of %s; end that first: tranche "+
			"endpoints canary %[4]s --none", to, name, second, first)
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	tag, err := tx.Exec(ctx, shareLimits, name, to, actor)
	if err == nil && tag.RowsAffected() > 0 {
		limits := *before
		limits.Canary, limits.CanaryShare = "", 0
		was, is := (&EndpointSetting{}).limits(), limits.limits()
		onlyChanges(was, is)
		err = ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "endpoint_set", Subject: to, Before: was,
			After: is})
	}
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, setCanary, name, to, c.Share); err != nil || c.Share < WholeShare {
		return err
	}
	if _, _, err := closeByHand(ctx, tx, name, actor); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, sharePace, name, to)
	return err
}

// changeCanary sets the canary, unless it is nil. It refuses one that other namespaces may use than its endpoint, also
// if the setting is the canary's: their runs would reach a service that is not for them.
func (s *EndpointSetting) changeCanary(ctx context.Context, tx pgx.Tx, to *Canary, actor string) error {
	if to != nil {
		if err := to.set(ctx, tx, s, actor); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, lockSetting, s.Endpoint).Scan(s.columns()...); err != nil {
			return err
		}
	}
	var name, of, canary, canaryOf string
	err := tx.QueryRow(ctx, otherNamespaces, s.Endpoint).Scan(&name, &of, &canary, &canaryOf)
	if err == nil {
		return workqueue.BadSetting("endpoint %s is for %s, and its canary %s for %s; end the canary, give both the same "+
			"namespaces, and set it again: tranche endpoints canary %[1]s --none", name, of, canary, canaryOf)
	}
	return pg.NoRow(err, nil)
}

const served = `
SELECT coalesce(o.canary, n) FROM unnest($1::text[]) n
LEFT JOIN endpoint_setting o ON o.endpoint = n COLLATE "C" AND o.canary_share = 100`

// Served returns the endpoints that get the requests for some: themselves, or a canary that gets all.
func (s Store) Served(ctx context.Context, endpoints []string) ([]string, error) {
	if len(endpoints) == 0 {
		return nil, nil
	}
	names, err := pg.Collect(ctx, s.db.Pool, pgx.RowTo[string], served, endpoints)
	return names, pg.Wrap(err, "read canaries")
}

// A search for services that began before a canary was set may have missed its first one.
const saveListening = `
UPDATE endpoint_setting SET canary_has_listeners = canary = ANY($1)
WHERE canary_share > 0 AND canary_has_listeners <> (canary = ANY($1))
  AND (canary = ANY($1) OR canary_since < tranche_now() - interval '3 s')`

// SaveListening saves which canaries have services, given the endpoints on which any listens. Others receive none,
// unless their share is 100%.
func (s Store) SaveListening(ctx context.Context, listening []string) error {
	_, err := s.db.Pool.Exec(ctx, saveListening, listening)
	return pg.Wrap(err, "save which canaries have services")
}
