package endpoints_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// A node answers a request that no one can deal with in the place of its service.
func TestFailureMsg(t *testing.T) {
	t.Parallel()
	meta := wire.Meta{Run: uuid.New(), Slice: uuid.New(), Step: 1, Attempt: 2, Generation: 3}
	request := wire.NewRequestBuilder("accounts", meta, 1<<20)
	request.Add(17, "k", nil)
	request.Add(18, "k", nil)
	asked := request.Msg()
	testenv.Same(t, wire.CountItems(asked.Header, asked.Data, wire.Limits{}), 2, "items")
	testenv.Same(t, wire.CountItems(asked.Header, []byte("{"), wire.Limits{}), 0, "items in a broken body")
	to := testenv.Must(wire.ParseReturn("tranche.stage.statement.1.0.accounts"))(t)
	failure := wire.SlotError{Code: wire.CodeDeliveries, Message: "two\nlines"}
	msg := wire.FailureMsg(asked.Header, to, "node", failure)
	again := wire.FailureMsg(asked.Header, to, "another", failure)
	if id := msg.Header.Get(wire.HeaderMsgID); id == "" || id != again.Header.Get(wire.HeaderMsgID) ||
		id == asked.Header.Get(wire.HeaderMsgID) {
		t.Errorf("the message id is %q", id)
	}
	testenv.Same(t, msg.Subject, to.String(), "the subject")
	reply, err := wire.ParseReply(wire.ReplySubject("accounts"), msg.Header, msg.Data, wire.Limits{})
	if err != nil || reply.Slice != meta.Slice || reply.Run != meta.Run || reply.Attempt != 2 || reply.Answered != 0 ||
		reply.Failure == nil || reply.Failure.Code != wire.CodeDeliveries || !reply.Failure.Retry {
		t.Errorf("it reads as %+v, %v", reply, err)
	}
	if wire.DeadMsgID(asked.Header) == "" || wire.DeadMsgID(nats.Header{}) != "" {
		t.Error("the ids of dead letters are wrong")
	}
}
