package endpoints_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
)

// A node answers a request that nobody can deal with in the place of its service.
func TestFailureMsg(t *testing.T) {
	t.Parallel()
	meta := endpoints.Meta{Run: uuid.New(), Slice: uuid.New(), Step: 1, Attempt: 2, Generation: 3}
	request := endpoints.NewRequestBuilder("accounts", meta, 1<<20)
	request.Add(17, "k", nil)
	request.Add(18, "k", nil)
	asked := request.Msg()
	if n := endpoints.CountItems(asked.Header, asked.Data, endpoints.Limits{}); n != 2 {
		t.Errorf("%d items; want 2", n)
	}
	if n := endpoints.CountItems(asked.Header, []byte("{"), endpoints.Limits{}); n != 0 {
		t.Errorf("%d items in a broken body", n)
	}
	to, err := endpoints.ParseReturn("tranche.stage.statement.1.0.accounts")
	if err != nil {
		t.Fatal(err)
	}
	failure := endpoints.SlotError{Code: endpoints.CodeDeliveries, Message: "two\nlines"}
	msg := endpoints.FailureMsg(asked.Header, to, "node", failure)
	again := endpoints.FailureMsg(asked.Header, to, "another", failure)
	if id := msg.Header.Get(endpoints.HeaderMsgID); id == "" || id != again.Header.Get(endpoints.HeaderMsgID) ||
		id == asked.Header.Get(endpoints.HeaderMsgID) {
		t.Errorf("the message id is %q", id)
	}
	if msg.Subject != to.String() {
		t.Errorf("the subject is %s", msg.Subject)
	}
	reply, err := endpoints.ParseReply(endpoints.ReplySubject("accounts"), msg.Header, msg.Data, endpoints.Limits{})
	if err != nil || reply.Slice != meta.Slice || reply.Run != meta.Run || reply.Attempt != 2 || reply.Answered != 0 ||
		reply.Failure == nil || reply.Failure.Code != endpoints.CodeDeliveries || !reply.Failure.Retry {
		t.Errorf("it reads as %+v, %v", reply, err)
	}
	if endpoints.DeadMsgID(asked.Header) == "" || endpoints.DeadMsgID(nats.Header{}) != "" {
		t.Error("the ids of dead letters are wrong")
	}
}
