package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"mime"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// ProtocolVersion is the major version in HeaderVersion of every message. Readers reject any other.
const ProtocolVersion = "1"

// Names of the streams.
const (
	StreamWork  = "TRANCHE_WORK"  // requests
	StreamReply = "TRANCHE_REPLY" // replies to nodes
	StreamEvent = "TRANCHE_EVENT"
	StreamStage = "TRANCHE_STAGE" // replies to flows
	StreamFlow  = "TRANCHE_FLOW"  // the state of suspended chunks
	StreamDead  = "TRANCHE_DEAD"  // dead letters to nodes
)

// RecorderConsumer is the durable consumer of replies shared by all nodes, DeadLetterConsumer that of dead letters.
const (
	RecorderConsumer   = "recorder"
	DeadLetterConsumer = "deadletters"
)

// DatabaseMark is the subject in StreamFlow where nodes keep the progress of their database. No endpoint can have
// this name.
const DatabaseMark = FlowPrefix + "$database.mark"

// MaxNameLength bounds the name of an endpoint.
const MaxNameLength = 64

// Prefixes of subjects.
const (
	WorkPrefix   = "tranche.work."
	ReplyPrefix  = "tranche.reply."
	EventPrefix  = "tranche.event."
	StatusPrefix = "tranche.status."
	StagePrefix  = "tranche.stage."
	FlowPrefix   = "tranche.flow."
	DeadPrefix   = "tranche.dead."
	directPrefix = "tranche.direct."
	CallPrefix   = "tranche.call."

	collectPrefix = "tranche.collect."
	partPrefix    = "tranche.part."
)

// APIPrefix is JetStream's API, NodesAPIPrefix the name of the nodes' API in other accounts (docs/security.md). Such
// an account maps the former to the latter.
const (
	APIPrefix      = "$JS.API."
	NodesAPIPrefix = "JS.tranche.API."
)

// DirectQueue is the queue group of instances for direct requests.
const DirectQueue = "tranche"

// Headers of requests and replies. NATS headers are case-sensitive.
const (
	HeaderVersion    = "Tranche-Version"
	HeaderRun        = "Tranche-Run"
	HeaderStep       = "Tranche-Step"
	HeaderSlice      = "Tranche-Slice"
	HeaderAttempt    = "Tranche-Attempt"
	HeaderGeneration = "Tranche-Generation"
	HeaderMode       = "Tranche-Mode"
	// HeaderFinal marks a reply's last message. Its value is the number of slots in the whole reply.
	HeaderFinal = "Tranche-Final"
	// HeaderPiece marks a piece of a result too large for one message: see Whole.
	HeaderPiece = "Tranche-Piece"
	// HeaderService is the service that answered: "name@version instance".
	HeaderService = "Tranche-Service"
	// HeaderTook, in a reply's last message, is the service's time for the chunk in milliseconds.
	HeaderTook = "Tranche-Took"

	// HeaderReplyTo is the subject for the reply if the requester is not a node.
	HeaderReplyTo = "Tranche-Reply-To"
	// HeaderStack lists the endpoints that wait for the answer, outermost first: "statement:1,accounts:2".
	HeaderStack = "Tranche-Stack"
	// HeaderRoot is the node's slice at the origin of a request, if not its own.
	HeaderRoot = "Tranche-Root"
	// HeaderOrigin names the original requester, for display.
	HeaderOrigin = "Tranche-Origin"
	// HeaderDeliveries is after how many unanswered deliveries the request fails.
	HeaderDeliveries = "Tranche-Deliveries"
	// HeaderRequeued is how often an operator has resent the request.
	HeaderRequeued = "Tranche-Requeued"
	// HeaderCollector names the collector that a flush is for.
	HeaderCollector = "Tranche-Collector"

	// Headers of a dead letter, in addition to its request's.
	HeaderDeadCause      = "Tranche-Dead-Cause"
	HeaderDeadMessage    = "Tranche-Dead-Message"
	HeaderDeadDeliveries = "Tranche-Dead-Deliveries"
	HeaderDeadService    = "Tranche-Dead-Service"
	HeaderDeadAt         = "Tranche-Dead-At"
	// HeaderDeadOmitted is the size of a body that did not fit.
	HeaderDeadOmitted = "Tranche-Dead-Omitted"

	HeaderMsgID       = "Nats-Msg-Id"
	HeaderError       = "Nats-Service-Error"
	HeaderErrorCode   = "Nats-Service-Error-Code"
	HeaderEncoding    = "Content-Encoding"
	HeaderContentType = "Content-Type"
	HeaderTrace       = "traceparent"
	HeaderTraceState  = "tracestate"
	HeaderTTL         = "Nats-TTL"
)

// Values of headers.
const (
	EncodingZstd    = "zstd"
	ContentTypeJSON = "application/json"
)

// WorkSubject returns the subject of an endpoint's requests.
func WorkSubject(endpoint string) string { return WorkPrefix + endpoint }

// laneMark ends the name of a lane. It is not allowed in endpoint names.
const laneMark = "+"

// LaneOf returns the name of an endpoint's lane for calls. Pass it to [WorkSubject] and [ConsumerName].
func LaneOf(endpoint string) string { return endpoint + laneMark }

// EndpointOf returns the endpoint of a name, which may be its lane's.
func EndpointOf(name string) (endpoint string, lane bool) { return strings.CutSuffix(name, laneMark) }

// nodeAsker is the prefix of the names of nodes in direct requests.
const nodeAsker = "node-"

// NodeAsker returns the name of a node in direct requests.
func NodeAsker(id string) string { return nodeAsker + id }

// IsNode reports whether a requester's name is a node's.
func IsNode(asker string) bool { return strings.HasPrefix(asker, nodeAsker) }

// StatusSubject returns the subject on which an endpoint's instances report their status.
func StatusSubject(endpoint string) string { return StatusPrefix + endpoint }

// ReplySubject returns the subject of an endpoint's replies.
func ReplySubject(endpoint string) string { return ReplyPrefix + endpoint }

// StageSubjects returns the filter for all replies to a flow.
func StageSubjects(endpoint string) string { return StagePrefix + endpoint + ".>" }

// DeadSubject returns the subject of an endpoint's dead letters.
func DeadSubject(endpoint string) string { return DeadPrefix + endpoint }

// DirectSubject returns the subject of an endpoint's direct requests, over core NATS.
func DirectSubject(endpoint string) string { return directPrefix + endpoint }

// CollectSubject returns the subject of operations for a collector, over core NATS. All nodes form one queue group.
func CollectSubject(collector string) string { return collectPrefix + collector }

// PartSubject returns the subject on which an endpoint's services ask nodes for large parts. All nodes form one queue
// group, PartQueue.
func PartSubject(endpoint string) string { return partPrefix + endpoint }

// PartQueue is the queue group of nodes on PartSubject.
const PartQueue = "tranche-part"

// ParsePartSubject returns the endpoint named by a subject. The error is a *MalformedError.
func ParsePartSubject(subject string) (string, error) { return endpointOf(subject, partPrefix) }

// EventSubject returns the subject of events of a kind.
func EventSubject(kind string) string { return EventPrefix + kind }

// ConsumerName returns the durable consumer shared by an endpoint's instances.
func ConsumerName(endpoint string) string { return endpoint }

// ConsumerAPI returns the API subject for an endpoint's consumer.
func ConsumerAPI(verb, stream, endpoint string) string {
	return "$JS.API.CONSUMER." + verb + "." + stream + "." + ConsumerName(endpoint)
}

// ValidateName returns a *NameError unless the name is 1 to 64 characters of A-Z a-z 0-9 _ -.
func ValidateName(endpoint string) error {
	if endpoint == "" || len(endpoint) > MaxNameLength {
		return &NameError{Name: endpoint}
	}
	for i := range len(endpoint) {
		if c := endpoint[i]; !isWord(c) && c != '-' {
			return &NameError{Name: endpoint}
		}
	}
	return nil
}

// NameError is returned for an invalid endpoint name.
type NameError struct{ Name string }

func (e *NameError) Error() string {
	if len(e.Name) > MaxNameLength {
		return fmt.Sprintf("endpoint name %.20q… has %d characters; %d are allowed", e.Name, len(e.Name), MaxNameLength)
	}
	return fmt.Sprintf("endpoint name %q: use 1 to %d of A-Z a-z 0-9 _ -", e.Name, MaxNameLength)
}

func endpointOf(subject, prefix string) (string, error) {
	name, found := strings.CutPrefix(subject, prefix)
	if !found {
		return "", Malformed(ReasonSubject, "subject %.100q does not start with %s", subject, prefix)
	}
	if err := ValidateName(name); err != nil {
		return "", Malformed(ReasonSubject, "%v", err)
	}
	return name, nil
}

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}

// Headers of a suspended chunk's messages, in addition to its request's.
const (
	HeaderFlowParts    = "Tranche-Flow-Parts"    // number of messages of the state
	HeaderFlowWrite    = "Tranche-Flow-Write"    // equal on all messages of one state
	HeaderFlowAnswered = "Tranche-Flow-Answered" // items already answered
	HeaderFlowTotal    = "Tranche-Flow-Total"    // items of the request
	HeaderFlowBegun    = "Tranche-Flow-Begun"    // start of the work on the chunk, in Unix milliseconds
	HeaderFlowAsks     = "Tranche-Flow-Asks"     // endpoints asked, for nodes
	HeaderFlowDone     = "Tranche-Flow-Done"     // marks a state that is no longer needed
)

// Limits of texts from services.
const (
	MaxCodeLength    = 64
	MaxMessageLength = 2 << 10 // bytes; longer messages are cut
	MaxServiceName   = 256
	maxContentType   = 255
	// MaxHeaderMessage cuts the copy of an error message in a header.
	MaxHeaderMessage = 256
)

// DefaultBinaryType is the default content type of a binary result.
const DefaultBinaryType = "application/octet-stream"

func validCode(code string) bool {
	if code == "" || len(code) > MaxCodeLength {
		return false
	}
	for i := range len(code) {
		if c := code[i]; !isWord(c) && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

// cleanCode converts any string to a valid code.
func cleanCode(code string) string {
	if validCode(code) {
		return code
	}
	code = strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf && (isWord(byte(r)) || r == '.' || r == '-') {
			return r
		}
		return '_'
	}, code)
	if code == "" {
		return CodeHandlerError
	}
	return code[:min(len(code), MaxCodeLength)]
}

// cleanMessage returns valid UTF-8 of at most MaxMessageLength bytes, without NUL, which PostgreSQL's text rejects.
func cleanMessage(message string) string {
	message = Cut(message, MaxMessageLength)
	if strings.IndexByte(message, 0) >= 0 {
		message = strings.ReplaceAll(message, "\x00", "\uFFFD")
		message = Cut(message, MaxMessageLength)
	}
	return message
}

// Cut returns the first n bytes of s or fewer, as valid UTF-8.
func Cut(s string, n int) string {
	if len(s) > n {
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "?")
}

// ValidContentType reports whether t is a content type.
func ValidContentType(t string) bool {
	if t == "" || len(t) > maxContentType || !strings.Contains(t, "/") {
		return false
	}
	for i := range len(t) {
		if t[i] <= 0x1f || t[i] >= 0x7f {
			return false
		}
	}
	return true
}

// ResultType returns the content type that a result is kept under: empty for JSON.
func ResultType(t string) string {
	if kind, _, err := mime.ParseMediaType(t); err == nil && kind == ContentTypeJSON {
		return ""
	}
	return t
}

// OneLine replaces control characters by spaces, for headers.
func OneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}

// requestBits is the number of bits for a request's number, at most MaxRequests.
const requestBits = 13

// FlowID identifies a suspended chunk. Its low bits are 0; they hold the number of a request in Slice.
type FlowID uuid.UUID

// NewFlowID derives the ID of a chunk suspended before a stage from its request, so that a repeated stage sends its
// requests under their old IDs. A resent request has other IDs, or the server would drop its requests as duplicates.
func NewFlowID(asker Meta, endpoint string, stage int) FlowID {
	name := endpoint + ":" + strconv.Itoa(stage)
	if asker.Requeued > 0 {
		name += ":" + strconv.Itoa(asker.Requeued)
	}
	flow, _ := SplitSlice(uuid.NewSHA1(asker.Slice, []byte(name)))
	return flow
}

// Slice returns the slice of one of the chunk's requests.
func (f FlowID) Slice(request int) uuid.UUID {
	last := binary.BigEndian.Uint16(f[14:])
	binary.BigEndian.PutUint16(f[14:], last|uint16(request)) // below MaxRequests
	return uuid.UUID(f)
}

// SplitSlice is the inverse of FlowID.Slice.
func SplitSlice(slice uuid.UUID) (flow FlowID, request int) {
	last := binary.BigEndian.Uint16(slice[14:])
	binary.BigEndian.PutUint16(slice[14:], last&^(1<<requestBits-1))
	return FlowID(slice), int(last & (1<<requestBits - 1))
}

func (f FlowID) String() string { return uuid.UUID(f).String() }

// TTLHeader formats a time to live for the server: whole seconds, at least 1.
func TTLHeader(d time.Duration) string {
	return strconv.Itoa(max(1, int(math.Ceil(d.Seconds()))))
}

const (
	// MaxStack bounds the endpoints that wait for one another.
	MaxStack = 16
	// MaxStages bounds the stages of a flow.
	MaxStages = 64
)

// Stack lists the endpoints that wait for an answer, outermost first, each with the stage that continues:
// "statement:1,accounts:2". A third part names one of several questions of a stage: "transfer:1:debit". It is empty
// if a node or caller asks.
type Stack string

// Push returns the stack of questions by endpoint before a stage, where s is the endpoint's own.
func (s Stack) Push(endpoint string, stage int) Stack { return s.PushAs(endpoint, stage, "") }

// PushAs is Push with a name that distinguishes several questions to one endpoint.
func (s Stack) PushAs(endpoint string, stage int, name string) Stack {
	frame := Stack(endpoint + ":" + strconv.Itoa(stage))
	if name != "" {
		frame += ":" + Stack(name)
	}
	if s == "" {
		return frame
	}
	return s + "," + frame
}

// Depth returns the number of waiting endpoints.
func (s Stack) Depth() int {
	if s == "" {
		return 0
	}
	return strings.Count(string(s), ",") + 1
}

// Refusal returns the error that answers an unreadable request.
func Refusal(err error) *SlotError {
	if bad, ok := errors.AsType[*MalformedError](err); ok && bad.Reason == ReasonStack {
		return NewSlotError(CodeStackTooDeep, bad.Detail+"; is there a circle?", false)
	}
	return NewSlotError(CodeBadRequest, err.Error(), false)
}

// ParseStack parses HeaderStack and rejects more than MaxStack endpoints.
func ParseStack(text string) (Stack, error) {
	s := Stack(text)
	if s.Depth() > MaxStack {
		return "", Malformed(ReasonStack, "more than %d endpoints wait for one another: %.300q", MaxStack, text)
	}
	if text == "" {
		return "", nil
	}
	for part := range strings.SplitSeq(text, ",") {
		name, number, _ := strings.Cut(part, ":")
		number, as, named := strings.Cut(number, ":")
		_, ok := smallNumber(number, MaxStages)
		if !ok || ValidateName(name) != nil || named && ValidateName(as) != nil {
			return "", fmt.Errorf("%.100q is not <endpoint>:<stage> or <endpoint>:<stage>:<name>", part)
		}
	}
	return s, nil
}
