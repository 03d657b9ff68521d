package health

import (
	"context"
	"sync"
	"time"

	"github.com/tranchehq/tranche/workqueue/health"
)

// facts is all that a look has found out.
type facts struct {
	host   string
	at     time.Time     // the database's clock, or ours without it
	db     *health.Facts // nil: it does not answer
	dbErr  error
	nats   bool // connected
	fills  []fill
	filled bool // it is known how full the streams are
	// unheard names what runs have work for and nobody does; asked says that this is known.
	unheard []unheard
	asked   bool
	disk    *diskSpace // nil: not known
	dataDir string
	short   []string
	limits  Config
}

// databaseTimeout leaves time for the rest of a look.
const databaseTimeout = 2 * time.Second

// look reads all there is to know and judges it.
func (w *Watch) look(ctx context.Context) *Report {
	f := w.gather(ctx)
	conditions := judge(f)
	w.date(ctx, f, conditions)
	r := newReport(f.at, conditions)
	r.Unseen, r.Blind = f.unseen(), f.db == nil
	return r
}

// unseen are the kinds of which a look may have missed conditions.
func (f *facts) unseen() []Kind {
	kinds := []Kind{NATS, Disk, Shortage} // of other servers
	if !f.asked {
		kinds = append(kinds, NoListeners)
	}
	if !f.filled {
		kinds = append(kinds, StreamLimit)
	}
	return kinds
}

func (w *Watch) gather(ctx context.Context) *facts {
	f := &facts{host: w.cfg.Host, at: time.Now(), nats: w.cfg.NC.IsConnected(), dataDir: w.cfg.DataDir, limits: w.cfg}
	var streams sync.WaitGroup
	streams.Go(func() { f.fills, f.filled = w.streams(ctx) })
	func() {
		asking, cancel := context.WithTimeout(ctx, databaseTimeout)
		defer cancel()
		f.db, f.dbErr = health.New(w.cfg.Store).Health(asking, w.limits)
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
