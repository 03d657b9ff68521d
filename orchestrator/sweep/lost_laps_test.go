package sweep_test

import (
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// Of many requests that nobody takes, more than one look is about, the last is taken out of the stream, and one in the
// middle: both are issued again, and no other is.
func TestLostRequestsAreFoundBehindOthers(t *testing.T) {
	t.Parallel()
	b := setupTimed(t)
	const n = 130
	req := nodetest.Patient()
	req.Steps[0].Chunk, req.Steps[0].InFlight = 1, n+10
	run := b.Start(t, req, n)
	b.Sent(t, run, n)
	js := b.JS(t)
	work, err := js.Stream(t.Context(), wire.StreamWork)
	if err != nil {
		t.Fatal(err)
	}
	for _, place := range []int{n / 2, n - 1} {
		var sequence int64
		err := b.Pool.QueryRow(t.Context(), `SELECT stream_seq FROM work_slice WHERE run_id = $1 AND state = 'sent'
			ORDER BY stream_seq OFFSET $2 LIMIT 1`, run, place).Scan(&sequence)
		if err == nil {
			err = work.DeleteMsg(t.Context(), uint64(sequence))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	testenv.Advance(t, b.Pool, time.Minute) // they were sent long ago
	nodetest.Until(t, "both are issued again", func() bool {
		b.Node.WakeDuty("lost")
		return b.Number(t, `SELECT count(*) FROM work_slice WHERE cause = 'lost' AND state = 'sent'`) == 2
	})
	if again := b.Number(t, `SELECT count(*) FROM work_slice WHERE cause <> 'ready'`); again != 2 {
		t.Errorf("%d requests were issued again; want 2", again)
	}
	l := nodetest.NewLedger(0)
	b.Serve(t, "statement", l.Handle)
	b.WantSound(t, l, run, n)
	l.WantOnce(t, run, n)
}
