// Package kernel is what the operations of all rooms of the API share: who may do what, requests that may be sent
// again, answers that say no, deadlines of bodies and answers, streams of events, and how a route is added and
// described.
//
// It knows no noun: what only one room needs is that room's. A [Kernel] serves any number of requests at once.
package kernel

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
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

	"github.com/danielgtaylor/huma/v2"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/access"
	nodestreams "github.com/tranchehq/tranche/orchestrator/streams"
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
	Stalled() *nodestreams.StalledStreams // nil: the streams answer
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
	// SecureCookies says that browsers come by TLS. TrustedProxies are the addresses of proxies of ours, whose word in
	// X-Forwarded-For is taken.
	SecureCookies  bool
	TrustedProxies []netip.Prefix

	Meter       Meter                  // nil: no one measures
	Trouble     func() (Trouble, bool) // the last thing that went wrong in the node; nil: nothing is known
	StreamBytes func() int64           // what the streams take on each server that keeps them; nil: it is not known

	ReadTimeout  time.Duration // how long a caller may go without sending, or taking, a byte
	QueryTimeout time.Duration // bounds the work for a GET

	// WakeLeaderTask has the leader do a leader task now; nil: it does it when its time comes.
	WakeLeaderTask func(name string)
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

	config          Config
	Silence         time.Duration // how long a caller may go without sending, or taking, a byte
	Turn            time.Duration // how long a request that reads much waits for its turn
	mux             *RouteMux
	heavy           *access.Slots // of requests that read whole runs,
	broad           *access.Slots // and of those that read much of one at once
	held            *access.Slots // of those whose answer is held as a whole
	Unauthenticated *access.Slots // of requests of whom it is not known who makes them, of each address
	bulk            bulkRoom
	underWay        underWay // requests that named a key
	Streams         streams
	active          sync.WaitGroup // requests in progress
}

// New returns the kernel of a server.
func New(store *database.DB, node Node, nc *nats.Conn, config Config) *Kernel {
	return &Kernel{
		Store: store, Node: node, NC: nc, Log: config.Log, Access: config.Access, config: config, Silence: config.ReadTimeout,
		Turn:  broadTimeout,
		heavy: slotsOf(config.Access, config.Connections/heavyShare),
		broad: slotsOf(config.Access, config.Connections/broadShare),
		held:  slotsOf(config.Access, maxHeld), bulk: newBulkRoom(),
		Unauthenticated: access.NewSlots(maxStrangers, math.MaxInt),
	}
}

// Wake has the leader do a leader task now; else it does it when its time comes.
func (s *Kernel) Wake(task string) {
	if s.config.WakeLeaderTask != nil {
		s.config.WakeLeaderTask(task)
	}
}

// Looking bounds the work for what only looks.
func (s *Kernel) Looking(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, s.config.QueryTimeout, errTooSlow)
}

type answer[T any] struct{ Body T }

// Register adds an operation whose errors are the package's. What only looks must be done in time. Before it, what
// the input embeds is seen to: see Actor, Changer, RunPath and JSON.
func Register[In, Out any](
	k *Kernel, api huma.API, op huma.Operation, handle func(ctx context.Context, in *In) (Out, error),
) {
	RegisterWithin(k, api, op, k.config.QueryTimeout, handle)
}

// RegisterWithin is Register with a bound of its own for what only looks.
func RegisterWithin[In, Out any](
	k *Kernel, api huma.API, op huma.Operation, limit time.Duration,
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

// RegisterAnswer is Register for an operation that makes the answer itself, and bounds its time.
func RegisterAnswer[In, Out any](
	k *Kernel, api huma.API, op huma.Operation, handle func(ctx context.Context, in *In) (*Out, error),
) {
	op.BodyReadTimeout = -1 // timedBody sees to it
	huma.Register(api, op, func(ctx context.Context, in *In) (out *Out, err error) {
		if err = k.prepare(ctx, in); err == nil {
			out, err = handle(ctx, in)
		}
		if err != nil {
			return nil, k.failure(ctx, err)
		}
		return out, nil
	})
}

// prepare sees to what an input embeds.
func (s *Kernel) prepare(ctx context.Context, in any) error {
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
		find(ctx context.Context, k *Kernel) error
	}); ok {
		return of.find(ctx, s)
	}
	return nil
}

// Get is an operation that only looks: every viewer may do it.
func Get(id, path, summary string) huma.Operation {
	return byViewer(huma.Operation{OperationID: id, Method: http.MethodGet, Path: path, Summary: summary})
}

// Post is an operation of operators that does something. More may be empty.
func Post(id, path, summary, more string) huma.Operation {
	return ByOperator(huma.Operation{OperationID: id, Method: http.MethodPost, Path: path, Summary: summary,
		Description: more})
}

// Delete is an operation of operators that takes something away.
func Delete(id, path, summary, more string) huma.Operation {
	op := Post(id, path, summary, more)
	op.Method = http.MethodDelete
	return op
}

// RunPath is the run that an operation is about.
type RunPath struct {
	Run string `path:"run" doc:"an id, a piece of one (4 digits or more), a name, or last" example:"last"`

	ID workqueue.RunID // of the run, which Register has found
}

func (r *RunPath) find(ctx context.Context, k *Kernel) (err error) {
	ctx, cancel := k.Looking(ctx)
	defer cancel()
	r.ID, err = inspect.New(k.Store).Resolve(ctx, r.Run)
	return err
}

// FindRun returns the run that a reference means, if there is one.
func (s *Kernel) FindRun(ctx context.Context, ref string) (id workqueue.RunID, err error) {
	if ref == "" {
		return id, nil
	}
	return inspect.New(s.Store).Resolve(ctx, ref)
}

// ActorHeader names who asks for a change, for the audit log. Without authentication it is taken as said.
const ActorHeader = "Tranche-Actor"

// Anonymous is the actor of a change without the header.
const Anonymous = access.Anonymous

// Bounds of texts of requests, in bytes.
const (
	MaxNameBytes   = 200
	MaxCodeBytes   = 200
	MaxReasonBytes = 2000 // 500 characters
)

// MaxActorBytes bounds what the audit log is told.
const MaxActorBytes = 800 // 200 characters

// Actor is who asks.
type Actor struct {
	Name string `header:"Tranche-Actor" maxLength:"200" default:"anonymous" doc:"the caller, for the audit log"`
}

// Check refuses a name that the audit log cannot keep.
func (a *Actor) Check() error { return CheckText("header "+ActorHeader, a.Name, MaxActorBytes) }

// Changer is who asks for a change that needs a node that has started.
type Changer struct{ Actor }

func (*Changer) changes() {}

// ChooseOne refuses a selection of which not exactly one way is used.
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

// ListenWait is how long services have to say that they listen.
const ListenWait = 300 * time.Millisecond

// EndpointPath is the endpoint that an operation is about.
type EndpointPath struct {
	Endpoint string `path:"name" doc:"an endpoint's name"`
}

// CheckTarget checks the name of an endpoint, or of what else steps ask.
func CheckTarget(name string) error {
	kind, target := workqueue.TargetKind(name)
	if kind == workqueue.KindEndpoint {
		return CheckEndpoint(name)
	}
	if target == "" || len(target) > MaxTarget || strings.ContainsFunc(target, unicode.IsControl) {
		return BadInput("endpoint: give " + string(kind) + ": and its name, of 1 to " + strconv.Itoa(MaxTarget) +
			" characters, as tranche endpoints lists it")
	}
	return nil
}

// MaxTarget is how long the name of a host, a source or a function may be.
const MaxTarget = 300

// CheckEndpoint refuses what no endpoint can be called.
func CheckEndpoint(name string) error {
	if err := wire.ValidateName(name); err != nil {
		return BadInput("endpoint: " + Cut(err.Error(), 3*MaxEchoed))
	}
	return nil
}

// SeeLetters names the command that lists dead letters.
const SeeLetters = "tranche dlq list"

// SeeQuarantine names the command that lists quarantined messages.
const SeeQuarantine = "tranche quarantine list"

// SeePlans names the command that lists plans.
const SeePlans = "tranche plan list"

// MaxPlanVersion is the largest that there can be.
const MaxPlanVersion = math.MaxInt32

// Known is what a caller has already.
type Known struct {
	IfNoneMatch []string `header:"If-None-Match" doc:"the ETag of what the caller has: 304 when it is still the same"`
}

func (k *Known) known() []string { return k.IfNoneMatch }

type taggedAnswer[T any] struct {
	Status int
	ETag   string `header:"ETag"`
	Body   T
}

// RegisterTagged is Register for documents that callers ask for again and again: the input embeds a Known. tag is the
// ETag of one.
func RegisterTagged[In, Out any](
	k *Kernel, api huma.API, op huma.Operation, handle func(ctx context.Context, in *In) (Out, error),
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

// matches compares tags as If-None-Match does: whether they are weak does not matter.
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

// PrintOf is a fingerprint of a document.
func PrintOf(doc any) (string, error) {
	text, err := json.Marshal(doc)
	if err != nil {
		return "", err //nolint:wrapcheck // names what cannot be written
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:12]), nil
}

// SchemaOf describes a type by its place among the components.
func SchemaOf[T any](api huma.API) *huma.Schema {
	return api.OpenAPI().Components.Schemas.Schema(TypeOf[T](), true, "")
}

// SendJSON writes a document as huma does: a line, with <, > and & as they are.
func SendJSON(w io.Writer, document any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(document)
}

// TypeOf is reflect.TypeFor, for schemas.
func TypeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }
