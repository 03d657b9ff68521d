package workqueue_test

import (
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/session"
)

func (b *bench) readMark() session.Mark {
	b.Helper()
	m, err := session.New(b.Store).ReadMark(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return m
}

func (b *bench) raise(known session.Mark) session.Mark {
	b.Helper()
	m, err := session.New(b.Store).RaiseMark(b.Context(), known)
	if err != nil {
		b.Fatal(err)
	}
	return m
}

// A count that lies behind what is remembered is not raised, and the gap is passed once, by whoever comes first.
func TestGapIsPassedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 5 {
		b.raise(b.readMark())
	}
	known := b.readMark()
	if known.Beat != 5 || known.Timeline == 0 || known.Moved {
		t.Fatalf("the mark is %+v; want it raised five times, on a timeline", known)
	}
	run := b.Load(storetest.Chunked(1), 3)
	out := b.Claim(run, 2)
	b.Send(out[0])
	b.Record(storetest.Faulty(out[1], workqueue.SlotError{Code: "flaky", Retry: true})) // waits for its time
	b.Exec(`INSERT INTO stream_epoch (name, epoch, work_created, reply_created)
		VALUES ('streams', 3, tranche_now(), tranche_now())`)
	known.Epoch = 7
	waiting := b.Number(`SELECT count(*) FROM work_slice WHERE state = 'scheduled'`)
	var before uuid.UUID
	err := b.Pool.QueryRow(t.Context(), `SELECT id FROM work_slice WHERE state = 'scheduled'`).Scan(&before)
	if err != nil {
		t.Fatal(err, waiting)
	}
	b.Exec(`UPDATE database_mark SET counter = 2`)
	if back := b.raise(known); !back.Behind(known) || back.Beat != 2 {
		t.Errorf("a mark that lies behind was raised: %+v", back)
	}
	var passing sync.WaitGroup
	gaps := make(chan *session.Gap, 4)
	for range cap(gaps) {
		passing.Go(func() {
			gap, err := session.New(b.Store).PassGap(t.Context(), known)
			if err != nil {
				t.Error(err)
			}
			if gap != nil {
				gaps <- gap
			}
		})
	}
	passing.Wait()
	if len(gaps) != 1 {
		t.Fatalf("%d of four passed the gap", len(gaps))
	}
	if gap := <-gaps; !gap.Lost || gap.Runs != 1 {
		t.Errorf("the gap is %+v", gap)
	}
	if now := b.readMark(); now.Beat != 6 || now.Epoch != 8 || now.Behind(known) {
		t.Errorf("after the gap the mark is %+v", now)
	}
	if n := b.Number(`SELECT count(*) FROM work_slice WHERE id = $1`, before); n != 0 {
		t.Error("a slice that waits for its time has its old id")
	}
	const live = `SELECT count(*) FROM node_session WHERE ended_at IS NULL AND expires_at > tranche_now()`
	if n := b.Number(live); n != 0 {
		t.Errorf("%d sessions of another time live on", n)
	}
	if n := b.Number(`SELECT count(*) FROM run_event WHERE run_id = $1 AND kind = 'rewound'`, run); n != 1 {
		t.Errorf("the run's history tells of it %d times", n)
	}
	b.Check()
}

// A mark of another database says nothing of this one; a timeline that has changed says that another server took over.
func TestMarksOfOtherDatabasesAndTimelines(t *testing.T) {
	t.Parallel()
	b := setup(t)
	here := b.raise(b.readMark())
	other := session.Mark{Lineage: uuid.New(), Beat: 1000, Epoch: 9}
	if here.Behind(other) || here.Later(other) != here {
		t.Error("a mark of another database counts")
	}
	if gap, err := session.New(b.Store).PassGap(t.Context(), other); gap != nil || err != nil {
		t.Errorf("a gap %+v, %v by a mark of another database", gap, err)
	}
	b.Exec(`UPDATE database_mark SET timeline = timeline + 1`)
	if m := b.raise(here); !m.Moved || m.Beat != here.Beat {
		t.Errorf("another server took over, and the mark is %+v", m)
	}
	gap, err := session.New(b.Store).PassGap(t.Context(), here)
	if err != nil || gap == nil || gap.Lost {
		t.Errorf("the gap is %+v, %v; want one in which nothing is known to be lost", gap, err)
	}
	const harmless = `SELECT count(*) FROM run_event WHERE kind = 'database.rewound' AND NOT (payload->>'lost')::bool`
	if n := b.Number(harmless); n != 1 {
		t.Errorf("%d events tell of it", n)
	}
	if m := b.readMark(); m.Moved {
		t.Errorf("after it the mark is %+v", m)
	}
}
