package workqueue

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// What operators and nodes have found out about the endpoint; both rows may be missing.
const pacesOfEndpoint = `
SELECT coalesce(p.chunk, 0), CASE WHEN p.chunk_cap_until > clock_timestamp() THEN p.chunk_cap ELSE 0 END,
    coalesce(p.rate, 0), coalesce(e.rate, 0)
FROM endpoint_pace p FULL JOIN endpoint_setting e USING (endpoint) WHERE endpoint = $1`

// chunkOfMoment is the chunk that a claim of the step would cut now, but for what large payloads make of it.
func chunkOfMoment(ctx context.Context, tx pgx.Tx, step *stepSettings) (int, error) {
	of := chunking{chunk: step.chunk, auto: step.chunkAuto}
	var taught, rate float64
	err := tx.QueryRow(ctx, pacesOfEndpoint, step.endpoint).Scan(&of.learned, &of.limit, &taught, &rate)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("read the pace of endpoint %s: %w", step.endpoint, err)
	}
	of.rates = [...]float64{step.rate, rate, 0}
	if step.inFlightAuto {
		of.rates[2] = taught
	}
	return of.size(), nil
}
