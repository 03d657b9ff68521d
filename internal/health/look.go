package health

import (
	"context"
	"sync"
	"time"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/workqueue/health"
)

// facts is all that a look has found out.
type facts struct {
	host   string
	at     time.Time     // the database's clock, or ours without it
	db     *health.Facts // nil: it does not answer
	dbErr  error
	listed int  // how many each of its lists has at the most
	nats   bool // connected
	// refused is what NATS refuses this server's user; empty: nothing.
	refused string
	fills   []fill
	filled  bool // it is known how full the streams are
	// unheard names what runs have work for and nobody does; asked says that this is known.
	unheard []unheard
	asked   bool
	disk    *diskSpace // nil: not known
	dataDir string
	short   []string
	limits  Config
}

const (
	// PostgreSQL in a look, and in one for alerts, which names everything; then it counts as away, and alerts tell
	// nothing until a look gets through. The rest of a look.
	databaseTimeout = 2 * time.Second
	// wholeTimeout is the same of a look that names everything, which nobody waits for in front of a screen.
	wholeTimeout = 5 * time.Second
	wholeListed  = 10_000
)

// look reads all there is to know and judges it.
func (w *Watch) look(ctx context.Context) *Report {
	f := w.gather(ctx)
	conditions := judge(f)
	w.date(ctx, f, conditions)
	if f.db != nil {
		w.marks = f.db.Marks
	}
	w.watchMarks(ctx, f, conditions)
	open, aside := divide(w.marks, conditions)
	r := newReport(f.at, open, aside, f.more())
	r.Unseen, r.Blind = f.unseen(), f.db == nil
	if f.db != nil {
		r.Cut = f.cut(f.listed)
	}
	return r
}

// cut are the kinds of which there may be more than was read, when lists have so many at the most.
func (f *facts) cut(listed int) (kinds []Kind) {
	db := f.db
	var letters, strays int64
	for i := range db.Letters {
		letters += db.Letters[i].Letters
	}
	for i := range db.Strays {
		strays += db.Strays[i].Messages
	}
	for _, l := range []struct {
		kind Kind
		cut  bool
	}{
		{FailedItems, len(db.Failed) >= listed}, {RunHeld, len(db.Held) >= listed}, {RunApproval, len(db.Held) >= listed},
		{RunGuard, len(db.Held) >= listed}, {RunGate, len(db.Held) >= listed},
		{RunOverdue, len(db.Overdue) >= listed},
		{OldestWaiting, db.IdleCut || len(db.Untaken) >= listed}, {StaleSlices, len(db.Stale) >= listed},
		{BreakerOpen, len(db.Open) >= listed}, {ServiceSlow, len(db.Slow) >= listed},
		{TokenExpiring, len(db.Tokens) >= listed},
		{DeadLetters, len(db.Letters) >= listed || letters >= health.MaxCounted},
		{Quarantined, len(db.Strays) >= listed || strays >= health.MaxCounted},
		{ScheduleFailing, len(db.SchedulesFailed) >= listed}, {ScheduleOverdue, len(db.SchedulesStuck) >= listed},
		{ScheduleLate, len(db.SchedulesLate) >= listed}, {CollectorParked, len(db.CollectorsParked) >= listed},
		{CollectorLate, len(db.CollectorsLate) >= listed}, {CollectorHangs, len(db.FlushesHung) >= listed},
		{CollectorRefuses, len(db.CollectorsRefusing) >= listed},
		{AlertFailing, len(db.AlertsFailing) >= listed}, {DatabaseGap, len(db.Gaps) >= listed},
	} {
		if l.cut {
			kinds = append(kinds, l.kind)
		}
	}
	return kinds
}

// unseen are the kinds of which a look may have missed conditions.
func (f *facts) unseen() []Kind {
	kinds := []Kind{NATS, Disk, Shortage}              // of other servers
	if !f.asked || f.db != nil && f.stalled() != nil { // then nothing is said of them
		kinds = append(kinds, NoListeners)
	}
	if !f.filled {
		kinds = append(kinds, StreamLimit)
	}
	return kinds
}

func (w *Watch) gather(ctx context.Context) *facts {
	f := &facts{host: w.cfg.Host, at: time.Now(), nats: w.cfg.NC.IsConnected(),
		refused: stream.UserRefused(w.cfg.NC), dataDir: w.cfg.DataDir, limits: w.cfg}
	var streams sync.WaitGroup
	streams.Go(func() { f.fills, f.filled = w.streams(ctx) })
	func() {
		asking, cancel := context.WithTimeout(ctx, w.cfg.DatabaseTimeout)
		defer cancel()
		// What was put aside at the last look takes nobody's place in the lists.
		limits := w.limits
		limits.Listed += min(len(w.marks), wholeListed)
		f.listed = limits.Listed
		f.db, f.dbErr = health.New(w.cfg.Store).Health(asking, limits)
	}()
	if f.db != nil {
		f.at = f.db.At
		f.unheard, f.asked = w.unheard(ctx, f.db)
	}
	if w.cfg.DataDir != "" {
		f.disk = spaceAt(w.cfg.DataDir)
	}
	if w.cfg.Short != nil {
		f.short = w.cfg.Short()
	}
	streams.Wait()
	return f
}
