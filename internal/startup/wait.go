// Package startup waits at the start of a server for PostgreSQL, NATS and the streams. It reports what is missing,
// ends a start that only a person can fix, with the remedy, and remembers the latest failure for diagnosis.
//
// Flags and wiring are in cmd/tranche; texts name flags of serve. It reads the settings of the streams from the
// store, and discards them if the streams never existed.
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

// Times of a start that waits for NATS and the streams. Temporary obstacles are waited for without a limit.
const (
	// refusedTimeout is for refusals that a starting server, or one being set up, may withdraw.
	refusedTimeout = 5 * time.Second
	// peersTimeout is for the cluster's other servers to start.
	peersTimeout = 2 * time.Minute
	// A wait is logged immediately, and again after doubling pauses.
	saidFirst, saidPause = 5 * time.Second, 5 * time.Minute
	// settingsTimeout limits the wait's own queries.
	settingsTimeout = 2 * time.Second
)

type obstacle struct {
	kind     string        // regardless of details
	waiting  string        // description of what is missing
	end      string        // permanent error with its remedy; empty: temporary
	patience time.Duration // before end applies
	first    bool          // ends only the very first start: later ones may be fixed by tranche streams set
}

// Wait reports what a start waits for, and ends it if only a person can fix it.
type Wait struct {
	At      string              // of NATS
	From    string              // where that address comes from; empty: the private server
	NC      func() *nats.Conn   // required; may return nil
	Store   func() *database.DB // required; may return nil
	Say     func(what string)   // required: shows what is waited for
	Trouble *Troubles           // required
	Now     func() time.Time    // required

	mu    sync.Mutex
	dial  error // of the latest failed connection attempt
	kind  string
	since time.Time
	next  time.Time // when to report again
	gaps  backoff.Exponential
}

// Hear returns the option by which Wait learns why NATS cannot be connected.
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

// Where returns the address of NATS and its origin.
func (w *Wait) Where() string {
	if w.From == "" {
		return w.At
	}
	return w.At + " (" + w.From + ")"
}

// Waits implements [orchestrator.Config.Waits].
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

// unset discards settings of streams that never existed, so that the next start can set others, and reports whether
// it did. For existing streams an operator can change the settings while this node waits.
func (w *Wait) unset() bool {
	ctx, cancel := context.WithTimeout(context.Background(), settingsTimeout)
	defer cancel()
	taken, err := session.New(w.Store()).UnsetStreams(ctx)
	return err == nil && taken
}

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

// set returns the settings of the streams; the zero value, the defaults, if they cannot be read.
func (w *Wait) set() session.StreamSettings {
	ctx, cancel := context.WithTimeout(context.Background(), settingsTimeout)
	defer cancel()
	set, _ := session.New(w.Store()).StreamsSet(ctx) // zero on error
	return set
}

// Needs returns the bytes that full streams take on each storing server.
func (w *Wait) Needs() int64 {
	set := w.set()
	return nodestreams.StreamConfig(&set.StreamValues).Bytes()
}

// Troubles remembers the last logged error, for diagnosis.
type Troubles struct {
	mu   sync.Mutex
	last api.Trouble
}

// Watch makes a logger record its errors here too.
func (t *Troubles) Watch() zap.Option {
	return zap.WrapCore(func(to zapcore.Core) zapcore.Core { return zapcore.NewTee(to, &troubleCore{of: t}) })
}

// Note records an error.
func (t *Troubles) Note(what string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = api.Trouble{What: what, Err: err, At: time.Now()}
}

// Last returns the last error, if any.
func (t *Troubles) Last() (api.Trouble, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last, t.last.Err != nil
}

type troubleCore struct{ of *Troubles }

func (*troubleCore) Enabled(level zapcore.Level) bool { return level >= zapcore.WarnLevel }

func (c *troubleCore) With([]zapcore.Field) zapcore.Core { return c }

func (c *troubleCore) Check(entry zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return to.AddCore(entry, c)
	}
	return to
}

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

func (*troubleCore) Sync() error { return nil }

// Times of the wait for PostgreSQL. Its limit is --database-wait.
const (
	knockTimeout           = 5 * time.Second
	knockFirst, knockPause = 100 * time.Millisecond, 2 * time.Second
)

// DatabaseWait waits for a PostgreSQL that is not up yet: both may start at the same time, as after a power loss.
// Permanent errors end it immediately.
type DatabaseWait struct {
	At       string        // address to show
	Timeout  time.Duration // 0: do not wait
	Knocking time.Duration // limit per address, also for name resolution; 0: 5 s
	Log      *zap.Logger   // required by Until
}

// Knock checks whether PostgreSQL accepts connections. Each address has a separate timeout, so that a silent one does
// not prevent trying the next.
func (w DatabaseWait) Knock(ctx context.Context, config *pgx.ConnConfig) error {
	config = config.Copy()
	knocking := cmp.Or(w.Knocking, knockTimeout)
	if config.ConnectTimeout <= 0 || config.ConnectTimeout > knocking {
		config.ConnectTimeout = knocking
	}
	lookUp := config.LookupFunc // pgx limits only what comes after it
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

// Until retries until success, a permanent error, or the timeout. An attempt in progress is not interrupted: a
// migration takes as long as it needs, and everything else limits itself.
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
