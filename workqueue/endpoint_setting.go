package workqueue

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// MaxEndpointConcurrency bounds what may be set as an endpoint's concurrency.
const MaxEndpointConcurrency = 1024

// EndpointSetting is what operators set for an endpoint while its services run.
type EndpointSetting struct {
	Endpoint    string    `json:"endpoint"`
	Concurrency int       `json:"concurrency" doc:"chunks at once in each instance; 0 leaves it to the service"`
	ChangedBy   string    `json:"changed_by,omitempty"`
	ChangedAt   time.Time `json:"changed_at"`
}

// SettingError is returned for a setting that an endpoint cannot have.
type SettingError struct{ Detail string }

func (e *SettingError) Error() string { return e.Detail }

const upsertSetting = `
INSERT INTO endpoint_setting (endpoint, concurrency, changed_by) VALUES ($1, $2, $3)
ON CONFLICT (endpoint) DO UPDATE
SET concurrency = excluded.concurrency, changed_by = excluded.changed_by, changed_at = clock_timestamp()`

// SetEndpoint stores the settings of an endpoint, with a row in the audit log. Nodes bring them to the services. The
// name need not be known: the setting waits for the endpoint.
func (s *Store) SetEndpoint(ctx context.Context, set EndpointSetting, actor string) error {
	if set.Endpoint == "" || !validText(set.Endpoint) {
		return &SettingError{fmt.Sprintf("%q is no endpoint's name", set.Endpoint)}
	}
	if set.Concurrency < 0 || set.Concurrency > MaxEndpointConcurrency {
		return &SettingError{fmt.Sprintf("concurrency %d of endpoint %s: give 1 to %d, or 0 for the service's own",
			set.Concurrency, set.Endpoint, MaxEndpointConcurrency)}
	}
	err := s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, upsertSetting, set.Endpoint, set.Concurrency, plain(actor)); err != nil {
			return err
		}
		return auditChange(ctx, tx, action{actor: actor, name: "endpoint_set", subject: set.Endpoint,
			after: map[string]any{"concurrency": set.Concurrency}})
	})
	if err != nil {
		return fmt.Errorf("set endpoint %s: %w", set.Endpoint, err)
	}
	return nil
}

const endpointSettings = `SELECT endpoint, concurrency, changed_by, changed_at FROM endpoint_setting ORDER BY endpoint`

// EndpointSettings returns what was ever set, ordered by endpoint; one that was set back to the default has
// Concurrency 0.
func (s *Store) EndpointSettings(ctx context.Context) ([]EndpointSetting, error) {
	rows, err := s.pool.Query(ctx, endpointSettings)
	if err != nil {
		return nil, fmt.Errorf("read the settings of endpoints: %w", err)
	}
	settings, err := pgx.CollectRows(rows, pgx.RowToStructByPos[EndpointSetting])
	if err != nil {
		return nil, fmt.Errorf("read the settings of endpoints: %w", err)
	}
	return settings, nil
}
