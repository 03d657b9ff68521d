package systest

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// A node dies between the commit that completes a run and the mark that this was told. Another one tells it, under the
// same id, and JetStream keeps one of them.
func TestACompletionIsToldAfterACrash(t *testing.T) {
	t.Parallel()
	for point, times := range map[string]int{
		fault.RecordCommitted: 1,
		fault.EventPublished:  2, // whoever listens over core NATS hears it again
	} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.items = chunk // one commit
			nc := testenv.Conn(t, w.ns)
			told, err := nc.SubscribeSync(wire.EventSubject("run.completed"))
			if err == nil {
				err = nc.Flush()
			}
			if err != nil {
				t.Fatal(err)
			}
			// With a lease so long it reads the outbox once, at its beginning.
			victim := w.start("node", faultsVariable+"="+point+"=kill", leaseVariable+"=1h", sessionVariable+"=1m")
			w.until("it leads", func() bool { return w.leader() > 0 })
			run := w.load()
			w.start("service")
			w.wantKilled(victim)
			if !strings.Contains(victim.said.String(), "fault fired: "+point) {
				t.Fatal("the fault did not fire")
			}
			const marked = `SELECT count(*) FROM run_event WHERE run_id = $1 AND kind = 'completed' AND published_at IS NOT NULL`
			if n := w.number(marked, run); n != 0 {
				t.Fatal("the event is marked as published before the node died")
			}
			if _, err := w.pool.Exec(t.Context(), `UPDATE leader SET expires_at = tranche_now()`); err != nil {
				t.Fatal(err)
			}
			w.start("node", sessionVariable+"=1m")
			w.until("the event is marked", func() bool { return w.number(marked, run) == 1 })
			w.wantParts(run, 1)
			w.wantTold(nc, told, times)
		})
	}
}

// wantTold checks that the only completion there is was told so many times, always under its id, and is stored once.
func (w *world) wantTold(nc *nats.Conn, told *nats.Subscription, times int) {
	w.Helper()
	var id string
	err := w.pool.QueryRow(w.Context(), `SELECT id::text FROM run_event WHERE kind = 'completed'`).Scan(&id)
	if err == nil {
		err = nc.Flush() // what came before is here
	}
	if err != nil {
		w.Fatal(err)
	}
	n := 0
	for ; ; n++ {
		msg, err := told.NextMsg(time.Millisecond)
		if err != nil {
			break
		}
		if got := msg.Header.Get(nats.MsgIdHdr); got != id {
			w.Errorf("it was told under id %s; want %s", got, id)
		}
	}
	if n != times {
		w.Errorf("it was told %d times; want %d", n, times)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		w.Fatal(err)
	}
	stream, err := js.Stream(w.Context(), wire.StreamEvent)
	if err != nil {
		w.Fatal(err)
	}
	info, err := stream.Info(w.Context(), jetstream.WithSubjectFilter(wire.EventSubject("run.completed")))
	if err != nil || info.State.Subjects[wire.EventSubject("run.completed")] != 1 {
		w.Errorf("JetStream has %+v, %v; want one", info, err)
	}
}
