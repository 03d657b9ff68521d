package orchestrator

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/orchestrator/core"
	nodefetch "github.com/tranchehq/tranche/orchestrator/fetch"
	"github.com/tranchehq/tranche/orchestrator/streams"
	"github.com/tranchehq/tranche/workqueue"
)

// Defaults of Config.
const (
	// The leader reissues the claims of a node without a heartbeat for 5 s. One heartbeat may take two intervals.
	DefaultSessionTTL = 5 * time.Second
	DefaultHeartbeat  = time.Second
	// The leader renews its lease every quarter of it. It also limits each part of a sweep; the next sweep continues.
	DefaultLeaseTTL          = 4 * time.Second
	DefaultStreamsInterval   = 500 * time.Millisecond
	DefaultReconcileInterval = 2 * time.Second
	// Poll grows up to four times as long while polls find no work and nothing wakes the node.
	DefaultPoll         = 500 * time.Millisecond
	DefaultGrace        = 20 * time.Second
	DefaultClaimSlices  = 32
	DefaultRecordBatch  = 16
	DefaultReplyBacklog = 64 << 20
)

const (
	requestBytes = 512 << 10 // target size of a request; never more than the server's max_payload
	recorders    = 2         // concurrent commits
)

// Config configures a node. A zero field means its default.
type Config struct {
	Log     *zap.Logger // nil: no logs
	Version string      // of this binary, shown with the session
	Host    string      // empty: the machine's hostname

	SessionTTL        time.Duration // life of a session beyond its last heartbeat
	Heartbeat         time.Duration // at most a third of SessionTTL
	LeaseTTL          time.Duration // life of the leader's lease without renewal
	StreamsInterval   time.Duration // between checks of the streams, on every node
	ReconcileInterval time.Duration // between checks of endpoints, consumers and listeners, by the leader
	Poll              time.Duration // shortest time between polls for work when nothing wakes the node
	Grace             time.Duration // how long work in progress at a stop may take; the rest is handed back

	ClaimSlices  int // maximum slices of one claim
	RecordBatch  int // maximum replies of one commit
	ReplyBacklog int // bytes of buffered replies over core NATS

	// Locals are the functions for steps of kind local, by their names in plans. Other nodes do steps of others.
	Locals       map[string]fetch.Fetcher
	LocalWorkers int // chunks that a function processes concurrently; 0: GOMAXPROCS
	// Fetchers make fetchers for steps of kind http and sql. Other nodes do the steps of kinds missing here.
	Fetchers map[workqueue.Kind]nodefetch.Fetchers

	// LeaderTasks run on the leader, in addition to those of every node.
	LeaderTasks []LeaderTask
	// Precedence orders candidates: the highest leads. Nodes of tranche serve have 1: only they send alerts and read
	// schedules' files.
	Precedence int

	// Archive stores runs and the audit log before retention deletes them; nil: none. The same on all nodes.
	Archive Archive

	// Streams are saved as all nodes' settings unless the database has some. See [streams.Store.ChangeStreams].
	Streams stream.Config
	// Waits is called each time that the start cannot reach something. Its error ends [Node.Run]. nil: log and retry.
	Waits func(what string, err error) error

	Limits wire.Limits   // of replies
	Faults *fault.Points // nil: none
	Tracer core.Tracer   // nil: none
	Meter  core.Meter    // nil: none
}

func (c Config) withDefaults() Config {
	c.Log = cmp.Or(c.Log, zap.NewNop())
	c.Log = c.Log.WithOptions(Quiet())
	c.Meter = cmp.Or[core.Meter](c.Meter, core.NoMeter{})
	if c.Host == "" {
		c.Host, _ = os.Hostname() // only shown to people
	}
	c.SessionTTL = cmp.Or(c.SessionTTL, DefaultSessionTTL)
	c.Heartbeat = cmp.Or(c.Heartbeat, DefaultHeartbeat)
	c.LeaseTTL = cmp.Or(c.LeaseTTL, DefaultLeaseTTL)
	c.StreamsInterval = cmp.Or(c.StreamsInterval, DefaultStreamsInterval)
	c.ReconcileInterval = cmp.Or(c.ReconcileInterval, DefaultReconcileInterval)
	c.Poll = cmp.Or(c.Poll, DefaultPoll)
	c.Grace = cmp.Or(c.Grace, DefaultGrace)
	c.ClaimSlices = cmp.Or(c.ClaimSlices, DefaultClaimSlices)
	c.RecordBatch = cmp.Or(c.RecordBatch, DefaultRecordBatch)
	c.ReplyBacklog = cmp.Or(c.ReplyBacklog, DefaultReplyBacklog)
	c.LocalWorkers = cmp.Or(c.LocalWorkers, runtime.GOMAXPROCS(0))
	c.LeaderTasks = slices.Clone(c.LeaderTasks)
	c.Locals, c.Fetchers = maps.Clone(c.Locals), maps.Clone(c.Fetchers)
	return c
}

func (c Config) validate() error {
	positive := map[string]bool{
		"SessionTTL": c.SessionTTL > 0, "Heartbeat": c.Heartbeat > 0, "LeaseTTL": c.LeaseTTL > 0,
		"StreamsInterval": c.StreamsInterval > 0, "ReconcileInterval": c.ReconcileInterval > 0,
		"Poll": c.Poll > 0, "Grace": c.Grace > 0, "LocalWorkers": c.LocalWorkers > 0,
		"ClaimSlices": c.ClaimSlices > 0, "RecordBatch": c.RecordBatch > 0,
		"ReplyBacklog": c.ReplyBacklog > 0,
	}
	for name, ok := range positive {
		if !ok {
			return fmt.Errorf("orchestrator: Config.%s must be positive", name)
		}
	}
	first := streams.StreamValues(&c.Streams)
	if err := first.Validate(); err != nil {
		return fmt.Errorf("orchestrator: Config.Streams: %w", err)
	}
	for name, local := range c.Locals {
		if wire.ValidateName(name) != nil || local == nil {
			return fmt.Errorf("orchestrator: Config.Locals has %q; a name is 1 to %d of A-Z a-z 0-9 _ -, and names a function",
				name, wire.MaxNameLength)
		}
	}
	if c.Heartbeat*3 > c.SessionTTL {
		return fmt.Errorf("orchestrator: Config.Heartbeat is %s; it must be at most a third of SessionTTL, %s",
			c.Heartbeat, c.SessionTTL)
	}
	return nil
}

// Quiet removes items' values from logs above the level debug: PostgreSQL's errors quote them. Their codes stay.
func Quiet() zap.Option {
	return zap.WrapCore(func(to zapcore.Core) zapcore.Core { return quietCore{to} })
}

type quietCore struct{ zapcore.Core }

func (c quietCore) With(fields []zapcore.Field) zapcore.Core {
	return quietCore{c.Core.With(c.quiet(fields))}
}

func (c quietCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

func (c quietCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	if inner := c.Core.Check(entry, nil); inner != nil { // samplers, and levels of single outputs
		inner.Write(c.quiet(fields)...)
	}
	return nil
}

func (c quietCore) quiet(fields []zapcore.Field) []zapcore.Field {
	if c.Enabled(zapcore.DebugLevel) {
		return fields
	}
	for i, f := range fields {
		err, ok := f.Interface.(error)
		if !ok || f.Type != zapcore.ErrorType {
			continue
		}
		if text := core.WithoutValues(err); text != err.Error() { // other errors keep their type, for what watches the log
			fields = slices.Clone(fields)
			fields[i] = zap.String(f.Key, text)
		}
	}
	return fields
}
