package storetest

import (
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Look is what a node does after a commit with failures.
func (b *Bench) Look(l settle.FollowUp) (last pacestore.BreakerChange) {
	b.Helper()
	for _, endpoint := range l.Endpoints {
		change, err := pacestore.New(b.Store).CheckBreaker(b.Context(), endpoint)
		if err != nil {
			b.Fatal(err)
		}
		last = change
	}
	for _, endpoint := range l.Halved {
		if _, err := pacestore.New(b.Store).CheckTooBig(b.Context(), endpoint); err != nil {
			b.Fatal(err)
		}
	}
	return last
}

// Breaker returns the state of the breaker of [Endpoint], and its probes.
func (b *Bench) Breaker() (state string, probes int) {
	b.Helper()
	err := b.Pool.QueryRow(b.Context(), `SELECT breaker, probes FROM endpoint_pace WHERE endpoint = $1`, Endpoint).
		Scan(&state, &probes)
	if err != nil {
		b.Fatal(err)
	}
	return state, probes
}
