package control

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// ChunkOfMoment is the chunk that a claim of the step would cut now, but for what large payloads make of it.
func ChunkOfMoment(ctx context.Context, tx pgx.Tx, step *StepSettings) (int, error) {
	of := plane.Chunking{Chunk: step.Chunk, Auto: step.ChunkAuto}
	var taught, rate float64
	err := tx.QueryRow(ctx, pace.PacesOfEndpoint, step.Endpoint).Scan(&of.Learned, &of.Limit, &taught, &rate)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("read the pace of endpoint %s: %w", step.Endpoint, err)
	}
	of.Rates = [...]float64{step.Rate, rate, 0}
	if step.InFlightAuto {
		of.Rates[2] = taught
	}
	return of.Size(), nil
}
