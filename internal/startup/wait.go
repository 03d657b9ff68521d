// Package startup is what a server waits for when it starts: a PostgreSQL that comes up, a NATS that does not answer
// yet, streams that cannot be made. It says in words what is missing, ends a start that nothing but a person can fix,
// with the remedy, and remembers the last trouble for those who ask why nothing goes on.
//
// Flags and wiring are cmd/tranche's; its words name flags of serve. It reads from the store what is set for the
// streams and, where they have never been, takes it back.
package startup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/cli"
	nodestreams "github.com/tranchehq/tranche/orchestrator/streams"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/session"
)

// Times of a start that waits for NATS and the streams. What may pass by itself is waited for as long as it takes.
const (
	// refusedTimeout is for what a server that is starting, or being set up, may say and take back.
	refusedTimeout = 5 * time.Second
	// peersTimeout is for the other servers of a cluster to come up.
	peersTimeout = 2 * time.Minute
	// What is waited for is said at once, and again after pauses that double.
	saidFirst, saidPause = 5 * time.Second, 5 * time.Minute
	// settingsTimeout bounds what the wait itself asks the database.
	settingsTimeout = 2 * time.Second
)

// obstacle is why a node has not begun.
type obstacle struct {
	kind     string        // what it is, whatever its details
	waiting  string        // for what, in words
	end      string        // what does not pass by itself, with the remedy; empty: it may pass
	patience time.Duration // with the end
	first    bool          // it ends only the first start of all: later ones may be fixed by tranche streams set
}

// Wait tells what a start waits for, and ends it when that does not fix itself.
type Wait struct {
	At      string              // of NATS
	From    string              // what says so; empty: it is the private one
	NC      func() *nats.Conn   // required; it may return nil while there is none
	Store   func() *database.DB // required; also
	Say     func(what string)   // required: tells people what is waited for
	Trouble *Troubles           // required
	Now     func() time.Time    // required

	mu    sync.Mutex
	dial  error // of the last try to connect that came to nothing
	kind  string
	since time.Time
	next  time.Time // when it is said again
	gaps  backoff.Exponential
}

// Hear has the wait told why NATS cannot be connected to.
func (w *Wait) Hear() nats.Option {
	return func(o *nats.Options) error {
		told := o.ReconnectErrCB
		o.ReconnectErrCB = func(nc *nats.Conn, err error) {
			if told != nil {
				told(nc, err)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.dial = err
		}
		return nil
	}
}

// Where is NATS, and who says so.
func (w *Wait) Where() string {
	if w.From == "" {
		return w.At
	}
	return w.At + " (" + w.From + ")"
}

// Waits is [orchestrator.Config.Waits].
func (w *Wait) Waits(what string, err error) error {
	w.Trouble.Note("cannot "+what, err)
	o := w.judge(err)
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.Now()
	if o.kind != w.kind {
		w.kind, w.since, w.next = o.kind, now, now
		w.gaps = backoff.Exponential{First: saidFirst, Longest: saidPause}
	}
	if o.end != "" && now.Sub(w.since) >= o.patience && (!o.first || w.unset()) {
		return errors.New(o.end)
	}
	if !now.Before(w.next) {
		w.next = now.Add(w.gaps.Next())
		w.Say(o.waiting)
	}
	return nil
}

// unset takes back settings of the streams that were never brought about: the next start gives others. It reports
// whether that is so; when the streams have been once, an operator can set others while this node waits.
func (w *Wait) unset() bool {
	ctx, cancel := context.WithTimeout(context.Background(), settingsTimeout)
	defer cancel()
	taken, err := session.New(w.Store()).UnsetStreams(ctx)
	return err == nil && taken
}

// judge says what an error means for the start.
func (w *Wait) judge(err error) obstacle {
	nc := w.NC()
	if !nc.IsConnected() {
		w.mu.Lock()
		dial := w.dial
		w.mu.Unlock()
		if last := nc.LastError(); last != nil {
			dial = last
		}
		return w.unconnected(dial)
	}
	if o, ok := w.byJetStream(err); ok {
		return o
	}
	if why, coming := database.Coming(err); coming {
		return obstacle{kind: why, waiting: fmt.Sprintf("PostgreSQL, which %s: %v", why, err)}
	}
	return obstacle{kind: "streams", waiting: fmt.Sprintf("the session and the streams: %v", err)}
}

// set is what is set for the streams; the zero value, which is as they come, when that cannot be read.
func (w *Wait) set() session.StreamSettings {
	ctx, cancel := context.WithTimeout(context.Background(), settingsTimeout)
	defer cancel()
	set, _ := session.New(w.Store()).StreamsSet(ctx) // zero
	return set
}

// Needs is what the streams take on each server that keeps them, once they are full.
func (w *Wait) Needs() int64 {
	set := w.set()
	return nodestreams.StreamConfig(&set.StreamValues).Bytes()
}

// Troubles remembers the last error that was logged, for those who ask why nothing goes on.
type Troubles struct {
	mu   sync.Mutex
	last api.Trouble
}

// Watch makes a logger tell the troubles too.
func (t *Troubles) Watch() zap.Option {
	return zap.WrapCore(func(to zapcore.Core) zapcore.Core { return zapcore.NewTee(to, &troubleCore{of: t}) })
}

// Note remembers one.
func (t *Troubles) Note(what string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = api.Trouble{What: what, Err: err, At: time.Now()}
}

// Last is the last trouble, if there was one.
func (t *Troubles) Last() (api.Trouble, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last, t.last.Err != nil
}

// troubleCore is a log that keeps only the last error.
type troubleCore struct{ of *Troubles }

// Enabled implements zapcore.Core.
func (*troubleCore) Enabled(level zapcore.Level) bool { return level >= zapcore.WarnLevel }

// With implements zapcore.Core.
func (c *troubleCore) With([]zapcore.Field) zapcore.Core { return c }

// Check implements zapcore.Core.
func (c *troubleCore) Check(entry zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return to.AddCore(entry, c)
	}
	return to
}

// Write implements zapcore.Core.
func (c *troubleCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	for i := range fields {
		err, ok := fields[i].Interface.(error)
		if !ok || fields[i].Type != zapcore.ErrorType {
			continue
		}
		c.of.Note(entry.Message, err)
	}
	return nil
}

// Sync implements zapcore.Core.
func (*troubleCore) Sync() error { return nil }

// Times of the wait for a PostgreSQL that is not there yet. How long it is waited for says --database-wait.
const (
	knockTimeout           = 5 * time.Second
	knockFirst, knockPause = 100 * time.Millisecond, 2 * time.Second
)

// DatabaseWait is the patience of a start with a PostgreSQL that is not there yet: both may come up at once, as after
// a loss of power. What is wrong permanently ends it at once.
type DatabaseWait struct {
	At       string        // where it is, for people
	Timeout  time.Duration // 0: none
	Knocking time.Duration // how long an address, or who knows them, may take to answer; 0: 5 s
	Log      *zap.Logger   // required by Until
}

// Knock looks whether PostgreSQL takes connections, and does not wait long for one that has gone silent. Each of the
// addresses has a time of its own: one that never answers must not keep the next from being tried.
func (w DatabaseWait) Knock(ctx context.Context, config *pgx.ConnConfig) error {
	config = config.Copy()
	knocking := cmp.Or(w.Knocking, knockTimeout)
	if config.ConnectTimeout <= 0 || config.ConnectTimeout > knocking {
		config.ConnectTimeout = knocking
	}
	lookUp := config.LookupFunc // pgx bounds what comes after it
	config.LookupFunc = func(ctx context.Context, host string) ([]string, error) {
		ctx, cancel := context.WithTimeout(ctx, knocking)
		defer cancel()
		return lookUp(ctx, host)
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, knocking)
	defer cancel()
	return conn.Close(ctx)
}

// Until tries until it succeeds, what went wrong is wrong permanently, or the patience is used up. A try that has begun
// is not cut short: a migration may take as long as it needs. All else of a try bounds itself.
func (w DatabaseWait) Until(ctx context.Context, try func(context.Context) error) error {
	begun, said := time.Now(), ""
	pauses := backoff.Exponential{First: knockFirst, Longest: knockPause}
	for {
		err := try(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		why, coming := database.Coming(err)
		waited := time.Since(begun)
		switch {
		case err == nil && said != "":
			w.Log.Info("PostgreSQL is there", zap.String("database", w.At), zap.Duration("after", waited))
			return nil
		case err == nil || !coming || w.Timeout <= 0:
			return err
		case waited >= w.Timeout:
			return fmt.Errorf("PostgreSQL %s, and was waited for %s (--database-wait): %w", why, cli.Span(w.Timeout), err)
		}
		if why != said {
			w.Log.Warn("PostgreSQL "+why+"; waiting for it, up to "+cli.Span(w.Timeout)+" in all",
				zap.String("database", w.At), zap.Error(err))
			said = why
		}
		if backoff.Sleep(ctx, min(pauses.Next(), w.Timeout-waited)) != nil {
			return context.Cause(ctx)
		}
	}
}
