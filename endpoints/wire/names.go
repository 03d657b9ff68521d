package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// ProtocolVersion is the major version that every message states in HeaderVersion. A reader refuses any other.
const ProtocolVersion = "1"

// The streams.
const (
	StreamWork  = "TRANCHE_WORK"  // requests
	StreamReply = "TRANCHE_REPLY" // replies on their way to a node
	StreamEvent = "TRANCHE_EVENT"
	StreamStage = "TRANCHE_STAGE" // replies on their way back into a flow
	StreamFlow  = "TRANCHE_FLOW"  // the state of suspended chunks
	StreamDead  = "TRANCHE_DEAD"  // dead letters on their way to a node
)

// RecorderConsumer is the durable consumer through which all nodes together read replies, DeadLetterConsumer the one
// through which they read dead letters.
const (
	RecorderConsumer   = "recorder"
	DeadLetterConsumer = "deadletters"
)

// DatabaseMark is where nodes keep, in StreamFlow, how far their database has come. No endpoint has such a name.
const DatabaseMark = FlowPrefix + "$database.mark"

// MaxNameLength is the longest name of an endpoint.
const MaxNameLength = 64

// What subjects begin with.
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
)

// JetStream's API, and what the nodes' is called in the accounts of others: docs/security.md. A mapping of the account
// leads there whoever asks for the former.
const (
	APIPrefix      = "$JS.API."
	NodesAPIPrefix = "JS.tranche.API."
)

// DirectQueue is the queue group of the instances that take requests over core NATS.
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
	// HeaderFinal stands on the last message of a reply. Its value is the number of slots in all messages of the reply.
	HeaderFinal = "Tranche-Final"
	// HeaderPiece stands on a piece of a result that does not fit one message: see Whole.
	HeaderPiece = "Tranche-Piece"
	// HeaderService says who answered: "name@version instance".
	HeaderService = "Tranche-Service"
	// HeaderTook stands on the last message of a reply: for how many milliseconds the service worked on the chunk.
	HeaderTook = "Tranche-Took"

	// HeaderReplyTo names the subject to reply on when it is not the endpoint's own: the asker is not a node.
	HeaderReplyTo = "Tranche-Reply-To"
	// HeaderStack names the endpoints that wait for the answer, outermost first: "statement:1,accounts:2".
	HeaderStack = "Tranche-Stack"
	// HeaderRoot is the slice of the node that all this is for, when it is not the request's own.
	HeaderRoot = "Tranche-Root"
	// HeaderOrigin says who asked first, for people.
	HeaderOrigin = "Tranche-Origin"
	// HeaderDeliveries says after how many deliveries without an answer the request is given up.
	HeaderDeliveries = "Tranche-Deliveries"
	// HeaderRequeued says how often an operator has sent the request again.
	HeaderRequeued = "Tranche-Requeued"
	// HeaderCollector names the collector whose operations are asked for; only flushes have it.
	HeaderCollector = "Tranche-Collector"

	// Headers that a dead letter has beside those of its request.
	HeaderDeadCause      = "Tranche-Dead-Cause"
	HeaderDeadMessage    = "Tranche-Dead-Message"
	HeaderDeadDeliveries = "Tranche-Dead-Deliveries"
	HeaderDeadService    = "Tranche-Dead-Service"
	HeaderDeadAt         = "Tranche-Dead-At"
	// HeaderDeadOmitted is the size of a body that did not fit the letter.
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

// WorkSubject is where the requests for an endpoint are published.
func WorkSubject(endpoint string) string { return WorkPrefix + endpoint }

// laneMark ends the name under which those who wait ask an endpoint. No endpoint's name has it.
const laneMark = "+"

// LaneOf is the name of the lane of an endpoint that is for those who wait: what [WorkSubject] and [ConsumerName] make
// of it are the lane's.
func LaneOf(endpoint string) string { return endpoint + laneMark }

// EndpointOf returns the endpoint that a name is of, or of whose lane it is.
func EndpointOf(name string) (endpoint string, lane bool) { return strings.CutSuffix(name, laneMark) }

// nodeAsker is what the names begin with under which nodes ask over core NATS.
const nodeAsker = "node-"

// NodeAsker is the name under which a node asks over core NATS.
func NodeAsker(id string) string { return nodeAsker + id }

// IsNode reports whether an asker is a node.
func IsNode(asker string) bool { return strings.HasPrefix(asker, nodeAsker) }

// StatusSubject is where an instance of an endpoint answers with its status.
func StatusSubject(endpoint string) string { return StatusPrefix + endpoint }

// ReplySubject is where the replies of an endpoint are published.
func ReplySubject(endpoint string) string { return ReplyPrefix + endpoint }

// StageSubjects is the filter for all replies that go back into the flow of an endpoint.
func StageSubjects(endpoint string) string { return StagePrefix + endpoint + ".>" }

// DeadSubject is where the dead letters of an endpoint are published.
func DeadSubject(endpoint string) string { return DeadPrefix + endpoint }

// DirectSubject is where requests for an endpoint go that no one persists, over core NATS.
func DirectSubject(endpoint string) string { return directPrefix + endpoint }

// CollectSubject is where operations for a collector go, over core NATS. All nodes listen as one queue group.
func CollectSubject(collector string) string { return collectPrefix + collector }

// EventSubject is where an event of the given kind is published.
func EventSubject(kind string) string { return EventPrefix + kind }

// ConsumerName is the durable consumer that all instances of an endpoint share.
func ConsumerName(endpoint string) string { return endpoint }

// ConsumerAPI is the subject of a request about an endpoint's consumer on a stream.
func ConsumerAPI(verb, stream, endpoint string) string {
	return "$JS.API.CONSUMER." + verb + "." + stream + "." + ConsumerName(endpoint)
}

// ValidateName returns a *NameError unless the name is 1 to 64 of the characters A-Z a-z 0-9 _ and -.
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

// NameError is returned for a name that cannot be an endpoint's.
type NameError struct{ Name string }

func (e *NameError) Error() string {
	if len(e.Name) > MaxNameLength {
		return fmt.Sprintf("endpoint name %.20q… has %d characters; %d are allowed", e.Name, len(e.Name), MaxNameLength)
	}
	return fmt.Sprintf("endpoint name %q: use 1 to %d of A-Z a-z 0-9 _ -", e.Name, MaxNameLength)
}

// endpointOf returns the endpoint that a subject with the given prefix names.
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

// Headers of a suspended chunk's messages, beside those of the request that began the flow.
const (
	HeaderFlowParts    = "Tranche-Flow-Parts"    // how many messages the state takes
	HeaderFlowWrite    = "Tranche-Flow-Write"    // the same on all messages of one state
	HeaderFlowAnswered = "Tranche-Flow-Answered" // items that the asker has been answered by then
	HeaderFlowTotal    = "Tranche-Flow-Total"    // items that the asker asked for
	HeaderFlowBegun    = "Tranche-Flow-Begun"    // when the work on the chunk began, in milliseconds since 1970
	HeaderFlowAsks     = "Tranche-Flow-Asks"     // the endpoints that were asked, for nodes
	HeaderFlowDone     = "Tranche-Flow-Done"     // on what takes the place of a state that is no longer needed
)

// Bounds of what a service may say about itself and its errors.
const (
	MaxCodeLength    = 64
	MaxMessageLength = 2 << 10 // bytes; longer messages are cut
	MaxServiceName   = 256
	maxContentType   = 255
	// MaxHeaderMessage cuts the copy of a failure's message that stands in a header.
	MaxHeaderMessage = 256
)

// DefaultBinaryType is the content type of a binary result that names none.
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

// cleanCode makes a valid code of any string.
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

// cleanMessage makes a message valid UTF-8 without NUL, which PostgreSQL's text cannot hold, and cuts it to
// MaxMessageLength bytes.
func cleanMessage(message string) string {
	message = Cut(message, MaxMessageLength)
	if strings.IndexByte(message, 0) >= 0 {
		message = strings.ReplaceAll(message, "\x00", "\uFFFD")
		message = Cut(message, MaxMessageLength)
	}
	return message
}

// Cut returns at most n bytes of s as valid UTF-8, ending at the end of a character.
func Cut(s string, n int) string {
	if len(s) > n {
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "?")
}

// ValidContentType reports whether a text is a content type.
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

// OneLine makes a string fit for a header.
func OneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}

// requestBits is how many bits the number of a request takes: there are at most maxRequests.
const requestBits = 13

// FlowID identifies a suspended chunk.
type FlowID uuid.UUID

// NewFlowID returns the id under which a chunk is suspended before a stage. It follows from who asked and for what, so
// that a stage that is repeated repeats its requests under their old ids. Its last bits are 0: there the number of a
// request stands.
//
// A request that an operator has sent again has ids of its own: the server would drop its requests as duplicates.
func NewFlowID(asker Meta, endpoint string, stage int) FlowID {
	name := endpoint + ":" + strconv.Itoa(stage)
	if asker.Requeued > 0 {
		name += ":" + strconv.Itoa(asker.Requeued)
	}
	flow, _ := SplitSlice(uuid.NewSHA1(asker.Slice, []byte(name)))
	return flow
}

// Slice returns the slice of one request of a suspended chunk.
func (f FlowID) Slice(request int) uuid.UUID {
	last := binary.BigEndian.Uint16(f[14:])
	binary.BigEndian.PutUint16(f[14:], last|uint16(request)) // below maxRequests
	return uuid.UUID(f)
}

// SplitSlice is the reverse of flowID.slice.
func SplitSlice(slice uuid.UUID) (flow FlowID, request int) {
	last := binary.BigEndian.Uint16(slice[14:])
	binary.BigEndian.PutUint16(slice[14:], last&^(1<<requestBits-1))
	return FlowID(slice), int(last & (1<<requestBits - 1))
}

func (f FlowID) String() string { return uuid.UUID(f).String() }

// TTLHeader writes a time to live as the server reads it: in seconds, at least one.
func TTLHeader(d time.Duration) string {
	return strconv.Itoa(max(1, int(math.Ceil(d.Seconds()))))
}

const (
	// MaxStack is how many endpoints may wait for one another.
	MaxStack = 16
	// MaxStages bounds the stages of a flow.
	MaxStages = 64
)

// Stack is the endpoints that wait for an answer, outermost first, each with the stage in which it goes on:
// "statement:1,accounts:2". A third part names one of several questions of a stage: "transfer:1:debit". The empty stack
// means that a node or a caller asks.
type Stack string

// Push returns the stack of what the endpoint asks on its way to a stage, being asked with s itself.
func (s Stack) Push(endpoint string, stage int) Stack { return s.PushAs(endpoint, stage, "") }

// PushAs is Push for one of several questions to one endpoint. The name tells them apart: they are different things to
// do.
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

// Depth returns how many endpoints wait.
func (s Stack) Depth() int {
	if s == "" {
		return 0
	}
	return strings.Count(string(s), ",") + 1
}

// Refusal is what the asker is told of a request that cannot be read.
func Refusal(err error) *SlotError {
	if bad, ok := errors.AsType[*MalformedError](err); ok && bad.Reason == ReasonStack {
		return NewSlotError(CodeStackTooDeep, bad.Detail+"; is there a circle?", false)
	}
	return NewSlotError(CodeBadRequest, err.Error(), false)
}

// ParseStack reads what stands in HeaderStack. One of more than MaxStack endpoints is refused.
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
