package workqueue_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/session"
)

func (b *bench) readMark() session.Mark {
	b.Helper()
	m := testenv.Must(session.New(b.Store).ReadMark(b.Context()))(b)
	return m
}

func (b *bench) raise(known session.Mark) session.Mark {
	b.Helper()
	m := testenv.Must(session.New(b.Store).RaiseMark(b.Context(), known))(b)
	return m
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
	if gap, err := session.New(b.Store).PassGap(t.Context(), here); gap != nil || err != nil {
		t.Errorf("it is passed again: %+v, %v", gap, err)
	}
}
