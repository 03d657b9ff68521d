// Package apicore is the shared part of the API's packages: authorization, idempotent requests, error answers,
// deadlines of bodies and answers, event streams, and registering and describing routes.
//
// It knows no resource: what one package alone needs belongs there. A [Core] is safe for concurrent use.
package apicore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/access"
	nodestreams "github.com/tranchehq/tranche/orchestrator/streams"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/identity"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// Prefix is the path prefix of every operation except the health checks.
const Prefix = "/api/v1"

// Node is what requests need to know about the node.
type Node interface {
	Ready() <-chan struct{} // closed once it can start runs
	Session() workqueue.SessionID
	Stalled() *nodestreams.StalledStreams // nil: the streams respond
}

// Meter measures requests.
type Meter interface {
	// Asked records an answered request: the route's pattern, the caller's role and the status.
	Asked(route, role string, code int)
}

// Config configures a Core.
type Config struct {
	Log   *zap.Logger
	Hosts []string // allowed in the Host header
	// Access authorizes callers; nil: every caller is an admin under the name it claims.
	Access *access.Gate
	// SecureCookies means that browsers connect by TLS. TrustedProxies are proxies whose X-Forwarded-For is trusted.
	SecureCookies  bool
	TrustedProxies []netip.Prefix
	Certificates   *access.Certificates // of clients; nil: none count
	FourEyes       []string             // kinds of acts that another administrator must confirm

	Meter       Meter                  // nil: not measured
	Trouble     func() (Trouble, bool) // the node's latest failure; nil: unknown
	StreamBytes func() int64           // bytes of the streams per storing server; nil: unknown

	ReadTimeout  time.Duration // how long a caller may go without sending or taking a byte
	QueryTimeout time.Duration // limits the work for a GET

	// WakeLeaderTask makes the leader run a leader task now; nil: it runs at its next interval.
	WakeLeaderTask func(name string)
	// Started returns the answer of a start for a run whose answer was lost.
	Started func(run *inspect.RunView) any
	// Connections is the size of the store's pool.
	Connections int
}

// Core is the shared part of an API server.
type Core struct {
	Store  *database.DB
	Node   Node
	NC     *nats.Conn
	Log    *zap.Logger
	Access *access.Gate // nil: every caller is an admin

	config          Config
	Silence         time.Duration // how long a caller may go without sending or taking a byte
	Turn            time.Duration // how long a request that reads much waits for its turn
	mux             *RouteMux
	heavy           *access.Slots // requests that read whole runs
	broad           *access.Slots // concurrent requests that read much of a run
	held            *access.Slots // requests whose answer is held whole
	Unauthenticated *access.Slots // requests without a known caller, per address
	bulk            bulkRoom
	underWay        sync.Map // requests with a key, by workqueue.RequestKey
	reads, refusals *access.Tally
	Streams         streams
	active          sync.WaitGroup // requests in progress
}

// New returns the Core of a server.
func New(store *database.DB, node Node, nc *nats.Conn, config Config) *Core {
	return &Core{
		Store: store, Node: node, NC: nc, Log: config.Log, Access: config.Access, config: config, Silence: config.ReadTimeout,
		Turn:  broadTimeout,
		heavy: slotsOf(config.Access, config.Connections/heavyShare),
		broad: slotsOf(config.Access, config.Connections/broadShare),
		held:  slotsOf(config.Access, maxHeld), bulk: bulkRoom{semaphore.NewWeighted(maxBulk)},
		Unauthenticated: access.NewSlots(maxStrangers, math.MaxInt),
		Streams:         streams{access.NewSlots(maxStreamsPerUser, maxStreams)},
		reads:           access.NewReads(identity.New(store), config.Log), refusals: access.NewRefusals(identity.New(store),
			config.Log),
	}
}

// Wake makes the leader run a leader task now, if it can be reached; else it runs at its next interval.
func (s *Core) Wake(task string) {
	if s.config.WakeLeaderTask != nil {
		s.config.WakeLeaderTask(task)
	}
}

// Looking limits the time of a read.
func (s *Core) Looking(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, s.config.QueryTimeout, errTooSlow)
}

type answer[T any] struct{ Body T }

// Register adds an operation and converts its errors to problems. Reads have a time limit. Before the handler it
// prepares what the input embeds: Actor, Changer, RunPath and JSON.
func Register[In, Out any](
	k *Core, api huma.API, op huma.Operation, handle func(ctx context.Context, in *In) (Out, error),
) {
	RegisterWithin(k, api, op, k.config.QueryTimeout, handle)
}

// RegisterWithin is Register with another time limit for reads.
func RegisterWithin[In, Out any](
	k *Core, api huma.API, op huma.Operation, limit time.Duration,
	handle func(ctx context.Context, in *In) (Out, error),
) {
	RegisterAnswer(k, api, op, func(ctx context.Context, in *In) (*answer[Out], error) {
		if op.Method == http.MethodGet {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, limit, errTooSlow)
			defer cancel()
		}
		out, err := handle(ctx, in)
		return &answer[Out]{Body: out}, err
	})
}

// RegisterAnswer is Register for an operation that builds the answer and limits its time itself.
func RegisterAnswer[In, Out any](
	k *Core, api huma.API, op huma.Operation, handle func(ctx context.Context, in *In) (*Out, error),
) {
	op.BodyReadTimeout = -1 // timedBody does it
	huma.Register(api, op, func(ctx context.Context, in *In) (out *Out, err error) {
		if err = k.prepare(ctx, in); err == nil && asksFirst(ctx, k, &op, in) {
			return nil, ask(ctx, k, &op, in, func() (any, error) { return handle(ctx, in) })
		}
		if err == nil {
			err = unchanged(ctx, &op, in)
		}
		if err == nil {
			out, err = handle(ctx, in)
		}
		if err != nil {
			return nil, k.failure(ctx, err)
		}
		k.noteRead(ctx, &op, in)
		return out, nil
	})
}

func (s *Core) prepare(ctx context.Context, in any) error {
	if who, ok := in.(interface{ Check() error }); ok {
		if err := who.Check(); err != nil {
			return err
		}
	}
	if _, ok := in.(interface{ changes() }); ok {
		if err := s.MayChange(); err != nil {
			return err
		}
	}
	if body, ok := in.(interface{ wrong() error }); ok {
		if err := body.wrong(); err != nil {
			return err
		}
	}
	if of, ok := in.(interface {
		find(ctx context.Context, k *Core) error
	}); ok {
		return of.find(ctx, s)
	}
	return nil
}

// Get describes a read, open to viewers.
func Get(id, path, summary string) huma.Operation {
	return by(access.Viewer, huma.Operation{OperationID: id, Method: http.MethodGet, Path: path, Summary: summary})
}

// Post describes an operators' action. more may be empty.
func Post(id, path, summary, more string) huma.Operation {
	return ByOperator(huma.Operation{OperationID: id, Method: http.MethodPost, Path: path, Summary: summary,
		Description: more})
}

// Delete describes an operators' removal.
func Delete(id, path, summary, more string) huma.Operation {
	op := Post(id, path, summary, more)
	op.Method = http.MethodDelete
	return op
}

// RunPath is the run in an operation's path.
type RunPath struct {
	Run string `path:"run" doc:"ID, part of an ID (4 digits or more), name, or last" example:"last"`

	ID workqueue.RunID // set by Register
}

func (r *RunPath) find(ctx context.Context, k *Core) (err error) {
	ctx, cancel := k.Looking(ctx)
	defer cancel()
	r.ID, err = inspect.New(k.Store).Resolve(ctx, r.Run)
	return err
}

func (r *RunPath) run() workqueue.RunID { return r.ID }

// FindRun resolves a reference to a run; the zero ID for an empty reference.
func (s *Core) FindRun(ctx context.Context, ref string) (id workqueue.RunID, err error) {
	if ref == "" {
		return id, nil
	}
	return inspect.New(s.Store).Resolve(ctx, ref)
}

// ActorHeader names the caller for the audit log. Without authentication it is trusted.
const ActorHeader = "Tranche-Actor"

// Anonymous is the actor without the header.
const Anonymous = access.Anonymous

// Maximum lengths of request texts, in bytes.
const (
	MaxNameBytes   = 200
	MaxCodeBytes   = 200
	MaxReasonBytes = 2000 // 500 characters
)

// MaxActorBytes limits the actor's name in the audit log.
const MaxActorBytes = access.MaxActor * utf8.UTFMax

// Actor is the caller.
type Actor struct {
	Name string `header:"Tranche-Actor" maxLength:"512" default:"anonymous" doc:"the caller, for the audit log"`
}

// Check refuses a name that the audit log cannot store.
func (a *Actor) Check() error { return CheckText("header "+ActorHeader, a.Name, MaxActorBytes) }

// Changer is the caller of a change, which needs a node that has started.
type Changer struct{ Actor }

func (*Changer) changes() {}

// ChooseOne refuses a selection unless exactly one way is used.
func ChooseOne(ways string, used ...bool) error {
	chosen := 0
	for _, u := range used {
		if u {
			chosen++
		}
	}
	if chosen != 1 {
		return BadInput("choose one of " + ways)
	}
	return nil
}

// ListenWait is how long services have to answer that they are listening.
const ListenWait = 300 * time.Millisecond

// EndpointPath is the endpoint in an operation's path.
type EndpointPath struct {
	Endpoint string `path:"name" doc:"an endpoint's name"`
}

// CheckTarget validates the name of an endpoint or of another step target, and spells it as [workqueue.TargetKey] does.
func CheckTarget(name *string) error {
	kind, target := workqueue.TargetKind(*name)
	if kind == workqueue.KindEndpoint {
		return CheckEndpoint(*name)
	}
	if target == "" || len(target) > MaxTarget || strings.ContainsFunc(target, unicode.IsControl) {
		return BadInput("endpoint: give " + string(kind) + ": and its name, of 1 to " + strconv.Itoa(MaxTarget) +
			" characters, as tranche endpoints lists it")
	}
	*name = workqueue.TargetKey(kind, target)
	return nil
}

// MaxTarget is the maximum length of a host's, source's or function's name.
const MaxTarget = 300

// CheckEndpoint validates an endpoint name.
func CheckEndpoint(name string) error {
	if err := wire.ValidateName(name); err != nil {
		return BadInput("endpoint: " + Cut(err.Error(), 3*MaxEchoed))
	}
	return nil
}

// SeeLetters is the command that lists dead letters.
const SeeLetters = "tranche dlq list"

// SeePlans is the command that lists plans.
const SeePlans = "tranche plan list"

// MaxPlanVersion is the largest possible version.
const MaxPlanVersion = math.MaxInt32

// Known is the caller's cached version.
type Known struct {
	IfNoneMatch []string `header:"If-None-Match" doc:"the ETag of what the caller has: 304 when it is still the same"`
}

func (k *Known) known() []string { return k.IfNoneMatch }

type taggedAnswer[T any] struct {
	Status int
	ETag   string `header:"ETag"`
	Body   T
}

// RegisterTagged is Register for documents that callers poll: the input embeds a Known. tag returns a document's
// ETag.
func RegisterTagged[In, Out any](
	k *Core, api huma.API, op huma.Operation, handle func(ctx context.Context, in *In) (Out, error),
	tag func(*Out) (string, error),
) {
	op.Responses = map[string]*huma.Response{"304": {Description: "It is as the caller knows it."}}
	RegisterAnswer(k, api, op, func(ctx context.Context, in *In) (*taggedAnswer[Out], error) {
		ctx, cancel := k.Looking(ctx)
		defer cancel()
		out, err := handle(ctx, in)
		answer := &taggedAnswer[Out]{Status: http.StatusOK, Body: out}
		if err == nil {
			answer.ETag, err = tag(&out)
		}
		if err != nil {
			return nil, err
		}
		if has, ok := any(in).(interface{ known() []string }); ok && matches(has.known(), answer.ETag) {
			answer.Status = http.StatusNotModified
		}
		return answer, nil
	})
}

// matches compares ETags weakly, as If-None-Match does.
func matches(known []string, tag string) bool {
	for _, list := range known {
		for one := range strings.SplitSeq(list, ",") {
			one = strings.TrimSpace(one)
			if one == "*" || strings.TrimPrefix(one, "W/") == strings.TrimPrefix(tag, "W/") {
				return true
			}
		}
	}
	return false
}

// PrintOf returns a fingerprint of a document.
func PrintOf(doc any) (string, error) {
	text, err := json.Marshal(doc)
	if err != nil {
		return "", err //nolint:wrapcheck // names what cannot be written
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:12]), nil
}

// CheckIfWas rejects if_was names that the request does not set.
func CheckIfWas(body any, values map[string]string) error {
	var sets map[string]any
	text, err := json.Marshal(body)
	if err == nil {
		err = json.Unmarshal(text, &sets)
	}
	for name := range values {
		if _, ok := sets[name]; !ok && err == nil {
			err = BadInput(fmt.Sprintf("if_was: the request does not set %q; use only settings that it sets", Echo(name)))
		}
	}
	return err
}

// SchemaOf returns a reference to a type's schema among the components.
func SchemaOf[T any](api huma.API) *huma.Schema {
	return api.OpenAPI().Components.Schemas.Schema(TypeOf[T](), true, "")
}

// SendJSON writes a document as huma does: one line, without escaping <, > and &.
func SendJSON(w io.Writer, document any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(document)
}

// TypeOf is reflect.TypeFor, for schemas.
func TypeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }
