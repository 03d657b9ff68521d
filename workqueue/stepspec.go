package workqueue

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue/order"
)

// MaxSteps bounds the steps of a run.
const MaxSteps = 64

// StepSpec is a step as its run starts with it.
type StepSpec struct {
	Name     string
	Endpoint string
	StepSettings

	Kind     Kind            // empty: KindEndpoint
	Needs    []int           // steps that must first be done for an item, all with smaller numbers
	Inputs   []int           // those of them whose parts its requests carry
	NoItem   bool            // its requests do not carry the items' payloads
	Optional bool            // steps that need it continue without it
	Barrier  bool            // it starts when its needed steps have ended for all items
	Approval string          // with a barrier: it also waits for approval, by ApproveAnyone or ApproveOther
	Config   json.RawMessage // the kind's own settings; nil: none
}

// Approvers of a step that waits for approval.
const (
	ApproveAnyone = "anyone" // any user who may change runs
	ApproveOther  = "other"  // only users not involved in the run
)

// Validate checks the i-th step's relation to other steps.
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

// EffectiveKind returns Kind or its default.
func (st *StepSpec) EffectiveKind() Kind {
	if st.Kind == "" {
		return KindEndpoint
	}
	return st.Kind
}

// Upper bounds of automatic chunks and limits by default, and of all limits.
const (
	AutoChunk    = bitfield.Size
	AutoInFlight = 1024
	MaxInFlight  = 10_000
)

// CodeComma separates codes, which contain no commas.
const CodeComma = ", "

// DefaultAutoChunk is the size of automatic chunks for an endpoint without history.
const DefaultAutoChunk = 500

// CodeInvalid is the error code of items that violate their run's schema. They are never sent.
const CodeInvalid = "invalid"

// CodeStopped is the error code of items that were not tried because an earlier one in their lane failed.
const CodeStopped = "ORDER_STOPPED"

// RunOrder puts the items of a run in lanes: those of the same value go one at a time in order, each after every
// step of the one before. Lanes are independent.
//
// The item in work is its lane's head; the rest are in the held planes. Settling the head over all steps makes the
// next item ready in the same transaction. A lane's row in work_lane is its lock.
type RunOrder struct {
	Rule order.Rule
	Stop bool // items after a failed one fail with CodeStopped, untried
}

// Kind is how the work of a step is done.
type Kind string

// The kinds of steps. Services take the first from the stream; nodes carry out the rest themselves.
const (
	KindEndpoint Kind = "endpoint" // a list request over JetStream
	KindDirect   Kind = "direct"   // a list request over core NATS, not persisted
	KindHTTP     Kind = "http"     // an external service
	KindSQL      Kind = "sql"      // a query in another database
	KindLocal    Kind = "local"    // a function of the program that embeds the node
)

// StepWork is what a claimer needs to know to do a step's work.
type StepWork struct {
	Kind    Kind
	Name    string
	Config  []byte      // the kind's own settings as JSON; nil: none
	Inputs  []StepInput // the parts that a request carries
	NoItem  bool        // its requests do not carry the items' payloads
	Timeout time.Duration
	Rate    float64 // most items a second; 0: no limit
}

// StepInput is a step whose parts another one sees.
type StepInput struct {
	Step Step
	Name string
}

// TargetKey is the key that paces a step: the endpoint's name, or the kind and target, like local:render. All spellings
// of an HTTP host have one, without port 80 or 443.
func TargetKey(kind Kind, target string) string {
	switch kind {
	case KindEndpoint, KindDirect, "":
		return target
	case KindHTTP:
		host, port := HostPort(&url.URL{Host: target})
		if port == "80" || port == "443" {
			port = ""
		}
		target = strings.TrimSuffix(net.JoinHostPort(host, port), ":")
	}
	return string(kind) + ":" + target
}

// HostPort returns a URL's host in one spelling, lower case without a final dot, and its port or that of its scheme.
func HostPort(u *url.URL) (host, port string) {
	host, port = strings.ToLower(strings.TrimSuffix(u.Hostname(), ".")), u.Port()
	if address, err := netip.ParseAddr(host); err == nil {
		host = address.Unmap().String()
	}
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[strings.ToLower(u.Scheme)]
	}
	return host, port
}

// Fetched reports whether nodes carry out such steps themselves, holding the slice until it is recorded.
func (k Kind) Fetched() bool { return k != KindEndpoint }

// OverNATS reports whether such steps send requests over NATS.
func (k Kind) OverNATS() bool { return k == KindEndpoint || k == KindDirect }

// targetWords are words for the targets of kinds whose name begins their keys, and for endpoints.
//
//nolint:gochecknoglobals // a table
var targetWords = map[Kind]string{KindHTTP: "HTTP service ", KindSQL: "source ", KindLocal: "local function ",
	KindEndpoint: "endpoint "}

// TargetKind splits a target key into its kind and target.
func TargetKind(key string) (kind Kind, target string) {
	name, target, found := strings.Cut(key, ":") // names of endpoints have no colon
	if kind = Kind(name); found && kind != KindEndpoint && targetWords[kind] != "" {
		return kind, target
	}
	return KindEndpoint, key
}

// TargetText describes a target key in words.
func TargetText(key string) string {
	kind, target := TargetKind(key)
	return targetWords[kind] + target
}

// Partitions is the number of partitions of work_queue and of work_result. PostgreSQL chooses a run's by a hash of
// its ID, so the ID's maker chooses it by trying IDs. Most runs share partition 0. A large load takes another, if
// possible an empty one, so that deleting it truncates a table. Nothing else depends on the partition.
const Partitions = 32

// NewRunIDIn returns a fresh ID of a run stored in a partition. It sorts by time like any other.
func NewRunIDIn(partition int) RunID {
	id := uuid.Must(uuid.NewV7())
	tail := id[12:]
	for n := binary.BigEndian.Uint32(tail); RunID(id).Partition() != partition; n++ {
		binary.BigEndian.PutUint32(tail, n)
	}
	return RunID(id)
}

// Partition is where PostgreSQL stores the run's rows: uuid_hash_extended of the ID with the seed of hash
// partitions, on little-endian servers. On others the result is merely wrong, and runs are spread.
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

// lookup3 is the state of Bob Jenkins' hash as in PostgreSQL (hash_bytes_extended).
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
