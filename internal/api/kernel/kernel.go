package kernel

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// Prefix stands before the path of every operation but the health checks.
const Prefix = "/api/v1"

// Node is what every request may need to know of the node.
type Node interface {
	Ready() <-chan struct{} // closed once it can start runs
	Session() workqueue.SessionID
}

// Meter measures requests.
type Meter interface {
	// Asked is told of a request that was answered: the pattern of its route, the role of who asked, and the status.
	Asked(route, role string, code int)
}

// Config is what a Kernel needs beside what it stands on.
type Config struct {
	Log   *zap.Logger
	Hosts []string // allowed in the Host header
	// Access knows who may do what; nil: everybody is an admin, under the name that they give themselves.
	Access *access.Gate
	// SecureCookies says that browsers come by TLS, and BehindProxy that a proxy of ours is what connects to this server.
	SecureCookies, BehindProxy bool

	Meter       Meter                  // nil: nobody measures
	Trouble     func() (Trouble, bool) // the last thing that went wrong in the node; nil: nothing is known
	StreamBytes func() int64           // what the streams take on each server that keeps them; nil: it is not known

	ReadTimeout time.Duration // how long a caller may go without sending, or taking, a byte
	LookTimeout time.Duration // bounds the work for a GET

	// WakeDuty has the node that leads do a duty now; nil: it does it when its time comes.
	WakeDuty func(name string)
	// Started is what a start answers of a run, for one whose answer was lost.
	Started func(run *inspect.RunView) any
	// Connections is how many the store has.
	Connections int
}

// Kernel is what the operations of all rooms share.
type Kernel struct {
	Store  *database.DB
	Node   Node
	NC     *nats.Conn
	Log    *zap.Logger
	Access *access.Gate // nil: everybody is an admin

	config    Config
	Silence   time.Duration // how long a caller may go without sending, or taking, a byte
	Turn      time.Duration // how long a request that reads much waits for its turn
	mux       *RouteMux
	heavy     *access.Slots // of requests that read whole runs,
	broad     *access.Slots // and of those that read much of one at once
	held      *access.Slots // of those whose answer is held as a whole
	Strangers *access.Slots // of requests of whom it is not known who makes them, of each address
	bulk      bulkRoom
	underWay  underWay // requests that named a key
	Streams   streams
	active    sync.WaitGroup // requests under way
}

// New returns the kernel of a server.
func New(store *database.DB, node Node, nc *nats.Conn, config Config) *Kernel {
	return &Kernel{
		Store: store, Node: node, NC: nc, Log: config.Log, Access: config.Access, config: config, Silence: config.ReadTimeout,
		Turn:  broadPatience,
		heavy: slotsOf(config.Access, config.Connections/heavyShare),
		broad: slotsOf(config.Access, config.Connections/broadShare),
		held:  slotsOf(config.Access, maxHeld), Strangers: access.NewSlots(maxStrangers, math.MaxInt), bulk: newBulkRoom(),
	}
}

// Wake has the node that leads do a duty now; else it does it when its time comes.
func (s *Kernel) Wake(duty string) {
	if s.config.WakeDuty != nil {
		s.config.WakeDuty(duty)
	}
}

// Looking bounds the work for what only looks.
func (s *Kernel) Looking(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, s.config.LookTimeout, errTooSlow)
}
