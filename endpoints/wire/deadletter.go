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

// DeadLetter is a request that no service could deal with, and what is known of its end. What is not known, or cannot
// be read, is the zero value.
type DeadLetter struct {
	Endpoint string
	MsgID    string // of the letter, derived from that of the request; never empty
	Cause    string // a code such as CodePanic
	Message  string
	Service  string // who gave it up: "name@version instance"
	At       time.Time
	// Deliveries is how often the request had been delivered by then.
	Deliveries int
	// Omitted is the size of a body that did not fit the letter. Then Body is empty, and the request cannot be sent again.
	Omitted int

	Mode             Mode
	Run, Slice, Root uuid.UUID
	Stack            string // as the request had it; ParseStack may refuse it
	Origin           string
	Requeued         int
	Items            int

	// Header and Body are the request's. Header has none of the letter's own headers, and none of those that mean
	// something to a NATS server; Body may be encoded, as Header says.
	Header nats.Header
	Body   []byte
}

// unknownCause stands for the cause of a letter that has none.
const unknownCause = "unknown"

// maxLetterText bounds what is taken from one header of a letter.
const maxLetterText = 1 << 10

// ParseDeadLetter reads a message from StreamDead. Whatever stands in it, it returns what can be read; the error, which
// is a *MalformedError, says that not even the endpoint is known. Body aliases body.
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

// readRequest reads what the request says of itself.
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

// letterDigest stands for the id of a letter that has none, so that the same one comes in once.
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
	// DeadID begins the Nats-Msg-Id of a letter.
	DeadID = "dead."
	// deadHeader begins the names of a letter's own headers.
	deadHeader = "Tranche-Dead-"
	// serverHeader begins the names of headers by which a NATS server is told what to do, or tells.
	serverHeader = "Nats-"
)

// askedWith returns the headers that the request of a letter would be sent with again.
func askedWith(h nats.Header) nats.Header {
	asked := nats.Header{}
	for name, values := range h {
		if !strings.HasPrefix(name, deadHeader) && !strings.HasPrefix(name, serverHeader) {
			asked[name] = slices.Clone(values)
		}
	}
	return asked
}

// FailureDetails is what a letter says of the end of its request.
type FailureDetails struct {
	Cause      *SlotError
	Deliveries int
	Service    string
	At         time.Time
	ID         string // of the letter when the request has none
}

// NewDeadLetter writes the letter of a request as one message of at most maxPayload bytes. A body that would not fit is
// compressed, or left out at last.
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

// fit brings a letter within maxPayload bytes.
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
	if size() > maxPayload { // headers that are of no one's making
		msg.Header = own
	}
}

// DeadMsgID is the Nats-Msg-Id of the dead letter of a request, so that a service and a node which both give the same
// request up leave one letter. It is "" for a request without an id of its own.
func DeadMsgID(request nats.Header) string {
	id := request.Get(HeaderMsgID)
	if id == "" {
		return ""
	}
	return DeadID + id
}

// FlowSubject is where a part of the state of a suspended chunk lies.
func FlowSubject(endpoint string, flow uuid.UUID, part int) string {
	return FlowPrefix + endpoint + "." + flow.String() + "." + strconv.Itoa(part)
}

// FlowStates is where the state of a chunk that a node asks for may lie, stage by stage, while it is suspended.
func FlowStates(endpoint string, slice uuid.UUID) []string {
	at := make([]string, MaxStages)
	for stage := range at {
		at[stage] = FlowSubject(endpoint, uuid.UUID(NewFlowID(Meta{Slice: slice}, endpoint, stage)), 0)
	}
	return at
}

// FlowStateSubject is where the first part of the state of the chunk lies that waits for the answer to a request of its
// flow. The headers of the message there say who asked for the chunk, and are those of its request. The number of the
// request that waits stands in the last bits of its slice, which are 0 in the id of the flow.
func FlowStateSubject(endpoint string, request uuid.UUID) string {
	last := binary.BigEndian.Uint16(request[14:])
	binary.BigEndian.PutUint16(request[14:], last&^(MaxRequests-1))
	return FlowSubject(endpoint, request, 0)
}

// AnsweredBefore is how many slots whoever asked for a chunk has been sent already, by the headers of the chunk's
// state; for those of a request it is 0.
func AnsweredBefore(h nats.Header) int {
	n, err := strconv.ParseUint(h.Get(HeaderFlowAnswered), 10, 31)
	if err != nil {
		return 0
	}
	return int(n)
}

// FailureMsg is the final message of a reply that answers no more of a request's items, because of a failure that may
// be retried. It is for a node that gives up a request which is not its own: the reply goes to where the request says.
// Its Nats-Msg-Id is derived from the request's slice, so that nodes that give up the same request answer it once.
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
