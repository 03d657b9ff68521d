package workqueue

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// unlearnedChunk is the chunk of an automatic step until nodes know better.
const unlearnedChunk = 500

// What operators and nodes have found out about the endpoint; both rows may be missing.
const pacesOfEndpoint = `
SELECT p.chunk, CASE WHEN p.chunk_cap_until > clock_timestamp() THEN p.chunk_cap END, p.rate, nullif(e.rate, 0)
FROM endpoint_pace p FULL JOIN endpoint_setting e USING (endpoint) WHERE endpoint = $1`

// chunkOfMoment is the chunk that a claim of the step would cut now, but for what large payloads make of it.
func chunkOfMoment(ctx context.Context, tx pgx.Tx, step *stepSettings) (int, error) {
	var learned, limit *int
	var taught, rate *float64
	err := tx.QueryRow(ctx, pacesOfEndpoint, step.endpoint).Scan(&learned, &limit, &taught, &rate)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("read the pace of endpoint %s: %w", step.endpoint, err)
	}
	chunk := step.chunk
	if step.chunkAuto && learned != nil {
		chunk = min(chunk, *learned)
	} else if step.chunkAuto {
		chunk = min(chunk, unlearnedChunk)
	}
	if limit != nil {
		chunk = min(chunk, *limit)
	}
	if !step.inFlightAuto {
		taught = nil
	}
	for _, r := range []*float64{&step.rate, taught, rate} { // half a second's worth at the most
		if r != nil && *r > 0 {
			chunk = min(chunk, max(1, int(min(*r/2, float64(chunk)))))
		}
	}
	return chunk, nil
}
