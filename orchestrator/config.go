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
	// A node says each second that it lives; one that has not for 5 s has its claims reissued by the leader. One
	// heartbeat may take two intervals.
	DefaultSessionTTL = 5 * time.Second
	DefaultHeartbeat  = time.Second
	// The leader prolongs its lease each quarter of it; else another node leads, as soon as it has run out. What a
	// part of a sweep does not get done within its life is left to the next one.
	DefaultLeaseTTL = 4 * time.Second
	// Each node looks at the streams.
	DefaultStreamsInterval = 500 * time.Millisecond
	// The leader looks at endpoints, consumers, listeners.
	DefaultReconcileInterval = 2 * time.Second
	// The leader looks at the pace of endpoints.
	DefaultPaceInterval = time.Second
	// A node looks for work that no one told it of; up to four times as long when there was none and no one wakes it.
	DefaultPoll = 500 * time.Millisecond
	// A stop ends what is in progress; the rest is handed back.
	DefaultGrace        = 20 * time.Second
	DefaultClaimSlices  = 32
	DefaultRequestBytes = 512 << 10
	DefaultRecordBatch  = 16
	DefaultPublishers   = 2
	DefaultRecorders    = 2
	DefaultReplyBacklog = 64 << 20
)

// Config sets a node up. A zero field means its default.
type Config struct {
	Log     *zap.Logger // nil: none
	Version string      // of this binary, shown beside the session
	Host    string      // empty: the host's name

	SessionTTL        time.Duration // life of a session beyond its last heartbeat
	Heartbeat         time.Duration // at most a third of SessionTTL
	LeaseTTL          time.Duration // life of the leader's lease beyond its last prolonging
	StreamsInterval   time.Duration // between two looks at the streams
	ReconcileInterval time.Duration // between two looks at the endpoints and their consumers, by the leader
	PaceInterval      time.Duration // between two looks at the pace of endpoints, by the leader
	Poll              time.Duration // between two looks for work when nothing wakes the node, at the least
	Grace             time.Duration // what a stop may take

	ClaimSlices  int // slices of one claim
	RequestBytes int // wanted size of a request; never more than the server's max_payload
	RecordBatch  int // replies of one commit at most
	Publishers   int // requests built at once
	Recorders    int // commits in progress at once
	ReplyBacklog int // bytes of replies over core NATS that are held while they wait to be taken

	// Locals are the functions for steps of kind local, by the names that plans have for them. Steps of other functions
	// are left to other nodes.
	Locals       map[string]fetch.Fetcher
	LocalWorkers int // chunks that a function works on at once; 0: as many as GOMAXPROCS
	// Fetchers make what fetches for steps of other kinds: http and sql. Steps of a kind that has none are left to other
	// nodes.
	Fetchers map[workqueue.Kind]nodefetch.Fetchers

	// LeaderTasks are done by the leader, beside those that every node has.
	LeaderTasks []LeaderTask
	// Precedence is that of this node in leading: it leaves it to nodes that have a higher one. The nodes of tranche serve
	// have 1, since a leader without their leader tasks would start no schedule.
	Precedence int

	// Streams are what the streams are to be like when nothing is set yet in the database, where it is kept for all nodes
	// from then on. See [streams.Store.ChangeStreams].
	Streams stream.Config
	// Waits is told why the node has not begun, each time that it has asked in vain for a session, NATS or the streams.
	// What it returns ends [Node.Run]. nil: the log is told, and the node goes on asking.
	Waits func(what string, err error) error

	Limits wire.Limits   // of the replies read
	Faults *fault.Points // nil: none
	Tracer core.Tracer   // nil: none
	Meter  core.Meter    // nil: none
}

func (c Config) withDefaults() Config {
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.Meter == nil {
		c.Meter = core.NoMeter{}
	}
	if c.Host == "" {
		c.Host, _ = os.Hostname() // shown to people only
	}
	c.SessionTTL = cmp.Or(c.SessionTTL, DefaultSessionTTL)
	c.Heartbeat = cmp.Or(c.Heartbeat, DefaultHeartbeat)
	c.LeaseTTL = cmp.Or(c.LeaseTTL, DefaultLeaseTTL)
	c.StreamsInterval = cmp.Or(c.StreamsInterval, DefaultStreamsInterval)
	c.ReconcileInterval = cmp.Or(c.ReconcileInterval, DefaultReconcileInterval)
	c.PaceInterval = cmp.Or(c.PaceInterval, DefaultPaceInterval)
	c.Poll = cmp.Or(c.Poll, DefaultPoll)
	c.Grace = cmp.Or(c.Grace, DefaultGrace)
	c.ClaimSlices = cmp.Or(c.ClaimSlices, DefaultClaimSlices)
	c.RequestBytes = cmp.Or(c.RequestBytes, DefaultRequestBytes)
	c.RecordBatch = cmp.Or(c.RecordBatch, DefaultRecordBatch)
	c.Publishers = cmp.Or(c.Publishers, DefaultPublishers)
	c.Recorders = cmp.Or(c.Recorders, DefaultRecorders)
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
		"PaceInterval": c.PaceInterval > 0,
		"Poll":         c.Poll > 0, "Grace": c.Grace > 0, "ClaimSlices": c.ClaimSlices > 0,
		"RequestBytes": c.RequestBytes > 0, "RecordBatch": c.RecordBatch > 0, "Publishers": c.Publishers > 0,
		"Recorders": c.Recorders > 0, "LocalWorkers": c.LocalWorkers > 0,
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
