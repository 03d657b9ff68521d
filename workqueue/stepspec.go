package workqueue

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue/order"
)

// MaxSteps is how many steps a run has at most.
const MaxSteps = 64

// StepSpec is a step as a run starts with it.
type StepSpec struct {
	Name     string
	Endpoint string
	StepSettings

	Kind     Kind            // empty: KindEndpoint
	Needs    []int           // steps that must be done for an item before, each with a smaller number
	Inputs   []int           // of those, the ones whose parts its requests carry
	NoItem   bool            // its requests do not carry the items' payloads
	Optional bool            // what needs it goes on without it
	Barrier  bool            // nothing of it begins before its needs have ended for all items
	Approval string          // with a barrier: nor before someone approves, ApproveAnyone or ApproveOther
	Config   json.RawMessage // the kind's own settings; nil: none
}

// Who may let a step begin that waits for an approval.
const (
	ApproveAnyone = "anyone" // whoever may change runs
	ApproveOther  = "other"  // but not who has a part in the run
)

// Validate checks what of the step, the i-th, concerns other steps.
func (st *StepSpec) Validate(i int) error {
	for n, need := range st.Needs {
		if need < 0 || need >= i {
			return fmt.Errorf("step %d (%s) needs step %d; it can need steps before it only", i, st.Name, need)
		}
		if slices.Contains(st.Needs[:n], need) {
			return fmt.Errorf("step %d (%s) needs step %d twice", i, st.Name, need)
		}
	}
	if st.Barrier && len(st.Needs) == 0 {
		return fmt.Errorf("step %d (%s) has a barrier, and needs no step that it could wait for", i, st.Name)
	}
	if st.Approval != "" && !st.Barrier {
		return fmt.Errorf("step %d (%s) waits for an approval, and has no barrier", i, st.Name)
	}
	for n, input := range st.Inputs {
		if !slices.Contains(st.Needs, input) || slices.Contains(st.Inputs[:n], input) {
			return fmt.Errorf("step %d (%s) sees the parts of step %d; want each of the steps that it needs once at most",
				i, st.Name, input)
		}
	}
	return nil
}

// EffectiveKind is how the work of the step is done.
func (st *StepSpec) EffectiveKind() Kind {
	if st.Kind == "" {
		return KindEndpoint
	}
	return st.Kind
}

// Upper bounds of steps whose chunk or in-flight limit nodes find themselves, unless other ones were given; and of all.
const (
	AutoChunk    = bitfield.Size
	AutoInFlight = 1024
	MaxInFlight  = 10_000
)

// CodeComma stands between codes, which have no commas.
const CodeComma = ", "

// DefaultAutoChunk is the size of automatic chunks before anything was learned of their endpoint.
const DefaultAutoChunk = 500

// CodeInvalid is the error code of items that do not fit the schema of their run. No one is asked about them.
const CodeInvalid = "invalid"

// CodeStopped is the error code of items that no one has tried, because one of the same lane failed before them.
const CodeStopped = "ORDER_STOPPED"

// RunOrder puts the items of a run in lanes: those of the same value are worked on one at a time in the order in
// which they came, and the next one begins when every step has come to its end with the one before. Lines do not wait
// for each other.
//
// The item of a lane that is worked on is its head; the others are held back in the planes, like those behind a canary.
// Whoever settles the head, over all steps, makes the next one ready in the same transaction. The row of a lane in
// work_lane is its lock.
type RunOrder struct {
	Rule order.Rule
	Stop bool // what follows an item that failed ends with CodeStopped, and is not tried
}

// Kind says how the work of a step is done.
type Kind string

// The kinds of steps. Services do the work of the first; the others are done by nodes themselves.
const (
	KindEndpoint Kind = "endpoint" // a list request over JetStream
	KindDirect   Kind = "direct"   // a list request over core NATS: nothing of it is persisted
	KindHTTP     Kind = "http"     // an external service
	KindSQL      Kind = "sql"      // a query in another database
	KindLocal    Kind = "local"    // a function of the program that embeds the node
)

// StepWork is what a claimer has to know of a step to do its work.
type StepWork struct {
	Kind    Kind
	Name    string
	Config  []byte      // the kind's own settings as JSON; nil without
	Inputs  []StepInput // the parts that a request carries
	NoItem  bool        // it does not carry the item's payload
	Timeout time.Duration
	Rate    float64 // items a second at most; 0: no limit
}

// StepInput names a step whose parts another one sees.
type StepInput struct {
	Step Step
	Name string
}

// TargetKey is what paces a step of a kind: the name of the endpoint, or the target behind the kind's name, as in
// local:render.
func TargetKey(kind Kind, target string) string {
	if kind == KindEndpoint || kind == KindDirect || kind == "" {
		return target
	}
	return string(kind) + ":" + target
}

// PaceKeys are the pace keys of targets of a kind.
func PaceKeys(kind Kind, targets []string) []string {
	keys := make([]string, len(targets))
	for i, target := range targets {
		keys[i] = TargetKey(kind, target)
	}
	return keys
}

// Fetched reports whether nodes do the work of such steps themselves, and hold the slice until it is recorded.
func (k Kind) Fetched() bool { return k != KindEndpoint }

// OverNATS reports whether the work of such steps is asked for over NATS.
func (k Kind) OverNATS() bool { return k == KindEndpoint || k == KindDirect }

// TargetKind says what a pace key is the key of: an endpoint, or the target of an HTTP, SQL or local step.
func TargetKind(key string) (kind Kind, target string) {
	for _, k := range []Kind{KindHTTP, KindSQL, KindLocal} {
		if target, ok := strings.CutPrefix(key, string(k)+":"); ok {
			return k, target
		}
	}
	return KindEndpoint, key
}

// TargetText is what a pace key is the key of, in words.
func TargetText(key string) string {
	kind, target := TargetKind(key)
	return map[Kind]string{KindHTTP: "HTTP service ", KindSQL: "source ", KindLocal: "local function ",
		KindEndpoint: "endpoint "}[kind] + target
}

// Partitions is how many work_queue has, and work_result as many. PostgreSQL puts the rows of a run into one of them by
// a hash of its id; whoever makes the id chooses which by trying ids. Most runs share partition 0; a large load takes
// another one, if it can one that no one has, so that deleting it is emptying a table. Which one a run is in is of no
// matter to anything but that.
const Partitions = 32

// NewRunIDIn returns a fresh id of a run whose items and outcomes go to a partition. Only its last, random bits are
// chosen by that: it sorts by its time like any other.
func NewRunIDIn(partition int) RunID {
	id := uuid.Must(uuid.NewV7())
	tail := id[12:]
	for n := binary.BigEndian.Uint32(tail); RunID(id).Partition() != partition; n++ {
		binary.BigEndian.PutUint32(tail, n)
	}
	return RunID(id)
}

// Partition is where PostgreSQL has the rows of the run: what uuid_hash_extended makes of the id with the seed of hash
// partitions, on servers that have the low byte first. On others it is merely wrong, and runs are scattered.
func (id RunID) Partition() int {
	const (
		seed    = 0x7a5b22367996dcfd // HASH_PARTITION_SEED
		combine = 0x49a0f4dd15e5a8e3 // of hash_combine64
	)
	start := uint32(0x9e3779b9 + len(id) + 3923095)
	h := lookup3{start, start, start}
	h.a += seed >> 32
	h.b += seed & 0xffffffff
	h.mix()
	h.a += binary.LittleEndian.Uint32(id[0:])
	h.b += binary.LittleEndian.Uint32(id[4:])
	h.c += binary.LittleEndian.Uint32(id[8:])
	h.mix()
	h.a += binary.LittleEndian.Uint32(id[12:])
	h.final()
	return int((uint64(h.b)<<32|uint64(h.c))+combine) & (Partitions - 1)
}

// lookup3 is the state of Bob Jenkins' hash of that name, as PostgreSQL has it (hash_bytes_extended).
type lookup3 struct{ a, b, c uint32 }

func (h *lookup3) mix() {
	h.a, h.c = h.a-h.c^bits.RotateLeft32(h.c, 4), h.c+h.b
	h.b, h.a = h.b-h.a^bits.RotateLeft32(h.a, 6), h.a+h.c
	h.c, h.b = h.c-h.b^bits.RotateLeft32(h.b, 8), h.b+h.a
	h.a, h.c = h.a-h.c^bits.RotateLeft32(h.c, 16), h.c+h.b
	h.b, h.a = h.b-h.a^bits.RotateLeft32(h.a, 19), h.a+h.c
	h.c, h.b = h.c-h.b^bits.RotateLeft32(h.b, 4), h.b+h.a
}

func (h *lookup3) final() {
	h.c = h.c ^ h.b - bits.RotateLeft32(h.b, 14)
	h.a = h.a ^ h.c - bits.RotateLeft32(h.c, 11)
	h.b = h.b ^ h.a - bits.RotateLeft32(h.a, 25)
	h.c = h.c ^ h.b - bits.RotateLeft32(h.b, 16)
	h.a = h.a ^ h.c - bits.RotateLeft32(h.c, 4)
	h.b = h.b ^ h.a - bits.RotateLeft32(h.a, 14)
	h.c = h.c ^ h.b - bits.RotateLeft32(h.b, 24)
}
