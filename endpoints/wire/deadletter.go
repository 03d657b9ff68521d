package wire

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
)

// DeadLetter is a request that no service could process, with its failure. Unknown or unreadable fields are zero.
type DeadLetter struct {
	Endpoint string
	MsgID    string // derived from the request's; never empty
	Cause    string // a code such as CodePanic
	Message  string
	Service  string // that gave it up: "name@version instance"
	At       time.Time
	// Deliveries is the number of deliveries by then, including the last one.
	Deliveries int
	// Omitted is the size of a body that did not fit. Body is then empty, and the request cannot be sent again.
	Omitted int

	Mode             Mode
	Run, Slice, Root uuid.UUID
	Stack            string // unchecked; ParseStack may reject it
	Origin           string
	Requeued         int
	Items            int

	// Header and Body are the request's, without the letter's own headers and those with a meaning for NATS servers.
	// Body may be encoded, as Header says.
	Header nats.Header
	Body   []byte
}

const unknownCause = "unknown"

// maxLetterText bounds the bytes read from a header of a letter.
const maxLetterText = 1 << 10

// ParseDeadLetter parses a message from StreamDead and returns all that is readable. The error, a *MalformedError,
// means that even the endpoint is unknown. Body aliases body.
func ParseDeadLetter(subject string, h nats.Header, body []byte) (DeadLetter, error) {
	letter := DeadLetter{Body: body, Header: askedWith(h)}
	letter.Cause = cleanCode(cmp.Or(letterText(h, HeaderDeadCause, MaxCodeLength), unknownCause))
	letter.Message = cleanMessage(h.Get(HeaderDeadMessage))
	letter.Service = letterText(h, HeaderDeadService, MaxServiceName)
	letter.At, _ = time.Parse(time.RFC3339, h.Get(HeaderDeadAt))
	letter.Deliveries = letterCount(h, HeaderDeadDeliveries)
	letter.Omitted = letterCount(h, HeaderDeadOmitted)
	letter.readRequest(h)
	letter.Items = CountItems(h, body, Limits{})
	if letter.MsgID = letterText(h, HeaderMsgID, maxLetterText); letter.MsgID == "" {
		letter.MsgID = letterDigest(subject, h, body)
	}
	var err error
	letter.Endpoint, err = endpointOf(subject, DeadPrefix)
	return letter, About(Meta{Run: letter.Run, Slice: letter.Slice}, err)
}

func (l *DeadLetter) readRequest(h nats.Header) {
	switch mode := Mode(h.Get(HeaderMode)); mode {
	case "", ModeBatch:
		l.Mode = ModeBatch
	case ModeSingle:
		l.Mode = mode
	}
	l.Run, l.Slice, l.Root = letterID(h, HeaderRun), letterID(h, HeaderSlice), letterID(h, HeaderRoot)
	if l.Root == uuid.Nil {
		l.Root = l.Slice
	}
	l.Stack = letterText(h, HeaderStack, MaxStack*(MaxNameLength+len(":63,")))
	l.Origin = letterText(h, HeaderOrigin, MaxServiceName)
	l.Requeued = letterCount(h, HeaderRequeued)
}

func letterText(h nats.Header, name string, limit int) string {
	return cleanMessage(Cut(h.Get(name), limit))
}

func letterID(h nats.Header, name string) uuid.UUID {
	id, err := uuid.Parse(h.Get(name))
	if err != nil {
		return uuid.Nil
	}
	return id
}

func letterCount(h nats.Header, name string) int {
	n, err := strconv.ParseInt(h.Get(name), 10, 32)
	if err != nil {
		return 0
	}
	return max(int(n), 0)
}

// letterDigest replaces the ID of a letter without one, so that the letter is saved once.
func letterDigest(subject string, h nats.Header, body []byte) string {
	sum := sha256.New()
	_, _ = fmt.Fprintf(sum, "%q", subject)
	for _, name := range slices.Sorted(maps.Keys(h)) {
		_, _ = fmt.Fprintf(sum, "%q%q", name, h[name])
	}
	_, _ = sum.Write(body)
	return DeadID + hex.EncodeToString(sum.Sum(nil))
}

const (
	// DeadID is the prefix of a letter's Nats-Msg-Id.
	DeadID = "dead."
	// deadHeader is the prefix of a letter's own headers.
	deadHeader = "Tranche-Dead-"
	// serverHeader is the prefix of headers with a meaning for NATS servers.
	serverHeader = "Nats-"
)

// askedWith returns the headers for sending a letter's request again.
func askedWith(h nats.Header) nats.Header {
	asked := nats.Header{}
	for name, values := range h {
		if !strings.HasPrefix(name, deadHeader) && !strings.HasPrefix(name, serverHeader) {
			asked[name] = slices.Clone(values)
		}
	}
	return asked
}

// FailureDetails is how a dead letter's request failed.
type FailureDetails struct {
	Cause      *SlotError
	Deliveries int
	Service    string
	At         time.Time
	ID         string // used if the request has no ID
}

// NewDeadLetter returns a dead letter of at most maxPayload bytes. A body that is too large is compressed or omitted.
func NewDeadLetter(endpoint string, request nats.Header, body []byte, o FailureDetails, maxPayload int) *nats.Msg {
	msg := &nats.Msg{Subject: DeadSubject(endpoint), Header: askedWith(request), Data: body}
	own := nats.Header{
		HeaderDeadCause:      {cleanCode(o.Cause.Code)},
		HeaderDeadMessage:    {OneLine(cleanMessage(o.Cause.Message))},
		HeaderDeadDeliveries: {strconv.Itoa(o.Deliveries)},
		HeaderDeadService:    {OneLine(Cut(o.Service, MaxServiceName))},
		HeaderDeadAt:         {o.At.UTC().Format(time.RFC3339)},
		HeaderMsgID:          {o.ID},
	}
	if id := DeadMsgID(request); id != "" {
		own[HeaderMsgID] = []string{OneLine(Cut(id, maxLetterText))}
	}
	maps.Copy(msg.Header, own)
	fit(msg, own, maxPayload)
	return msg
}

func fit(msg *nats.Msg, own nats.Header, maxPayload int) {
	size := func() int { return HeaderSize(msg.Header) + len(msg.Data) }
	if size() > maxPayload && msg.Header.Get(HeaderEncoding) == "" && len(msg.Data) <= DefaultMaxBody {
		if small := Compress(msg.Data); len(small) < len(msg.Data) {
			msg.Data = small
			msg.Header[HeaderEncoding] = []string{EncodingZstd}
		}
	}
	if size() > maxPayload {
		own[HeaderDeadOmitted] = []string{strconv.Itoa(len(msg.Data))}
		msg.Header[HeaderDeadOmitted] = own[HeaderDeadOmitted]
		msg.Data = nil
	}
	if size() > maxPayload { // headers of unknown origin
		msg.Header = own
	}
}

// DeadMsgID returns the Nats-Msg-Id of a request's dead letter, the same for a service and a node that abandon the
// same request. It is "" if the request has no ID.
func DeadMsgID(request nats.Header) string {
	id := request.Get(HeaderMsgID)
	if id == "" {
		return ""
	}
	return DeadID + id
}

// FlowSubject returns the subject of a part of a suspended chunk's state.
func FlowSubject(endpoint string, flow uuid.UUID, part int) string {
	return FlowPrefix + endpoint + "." + flow.String() + "." + strconv.Itoa(part)
}

// FlowStates returns the subjects, by stage, that may hold the state of a node's chunk while it is suspended.
func FlowStates(endpoint string, slice uuid.UUID) []string {
	at := make([]string, MaxStages)
	for stage := range at {
		at[stage] = FlowSubject(endpoint, uuid.UUID(NewFlowID(Meta{Slice: slice}, endpoint, stage)), 0)
	}
	return at
}

// FlowStateSubject returns the subject of the first part of the state of the chunk that waits for a flow's request.
// That message has the headers of the chunk's own request. The low bits of request number the request; in the flow's
// ID they are 0.
func FlowStateSubject(endpoint string, request uuid.UUID) string {
	last := binary.BigEndian.Uint16(request[14:])
	binary.BigEndian.PutUint16(request[14:], last&^(MaxRequests-1))
	return FlowSubject(endpoint, request, 0)
}

// AnsweredBefore returns how many slots of a chunk the requester has received, given the headers of the chunk's
// state. For headers of a request it is 0.
func AnsweredBefore(h nats.Header) int {
	n, err := strconv.ParseUint(h.Get(HeaderFlowAnswered), 10, 31)
	if err != nil {
		return 0
	}
	return int(n)
}

// FailureMsg returns the final message of a reply that fails the remaining items with a retryable error. Nodes use it
// to abandon requests of other requesters. Its Nats-Msg-Id is derived from the request's slice, so several nodes
// answer it once.
func FailureMsg(request nats.Header, to Return, service string, failure SlotError) *nats.Msg {
	msg := &nats.Msg{Subject: to.String(), Header: nats.Header{}}
	for _, name := range []string{HeaderVersion, HeaderRun, HeaderStep, HeaderSlice, HeaderAttempt, HeaderGeneration,
		HeaderMode, HeaderTrace, HeaderTraceState} {
		if value := request.Get(name); value != "" {
			msg.Header[name] = []string{value}
		}
	}
	id := request.Get(HeaderMsgID) + "." + request.Get(HeaderSlice) + "." + to.String()
	msg.Header[HeaderMsgID] = []string{uuid.NewSHA1(uuid.NameSpaceURL, []byte(id)).String()}
	msg.Header[HeaderService] = []string{OneLine(Cut(service, MaxServiceName))}
	msg.Header[HeaderFinal] = []string{strconv.Itoa(AnsweredBefore(request))}
	msg.Header[HeaderErrorCode] = []string{failure.Code}
	msg.Header[HeaderError] = []string{OneLine(Cut(failure.Message, MaxHeaderMessage))}
	return msg
}
