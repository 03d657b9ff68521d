package wire

import (
	"encoding/binary"
	"strconv"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
)

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
