package endpoints_test

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

type (
	customer struct {
		Name string `json:"name"`
	}
	accountQuery struct {
		ID string `json:"id"`
	}
	letter struct {
		Text string `json:"text"`
	}
	memory struct{ Name string }
)

type letterStage = endpoints.Stage[customer, letter, memory, endpoints.None]

var accounts = endpoints.To[accountQuery, Account]("accounts")

// letters is a flow in two stages. In between it waits for the endpoint "accounts", which may be of any service.
func letters() []func(context.Context, *letterStage) error {
	return []func(context.Context, *letterStage) error{
		func(_ context.Context, s *letterStage) error {
			for _, item := range s.Items() {
				if item.In.Name == "" {
					item.Fail("no_name", "%s has no name", item.Key)
					continue
				}
				item.State.Name = item.In.Name
				accounts.Ask(item, accountQuery{ID: item.Key})
			}
			return nil
		},
		func(_ context.Context, s *letterStage) error {
			for _, item := range s.Items() {
				item.Reply(letter{Text: fmt.Sprintf("%s, you have %d.", item.State.Name, accounts.Answer(item).Balance)})
			}
			return nil
		},
	}
}

func ExampleHandleFlow() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	js, stop := node(ctx)
	defer stop()
	svc, err := endpoints.New(js.Conn(), endpoints.Config{Name: "letters", Version: "1.0.0"})
	must(err)
	must(endpoints.HandleFlow(svc, "letter", letters()))
	must(endpoints.HandleEach(svc, "accounts", func(_ context.Context, q accountQuery) (Account, error) {
		if q.ID != "CUST-1" {
			return Account{}, endpoints.Fail("unknown_account", "there is no %s", q.ID)
		}
		return Account{Balance: 120}, nil
	}))
	serving, end := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- svc.Run(serving) }()

	request := wire.NewRequestBuilder("letter",
		wire.Meta{Run: uuid.New(), Slice: uuid.New(), Attempt: 1, Generation: 1}, 1<<20)
	request.Add(0, "CUST-1", []byte(`{"name":"Kari"}`))
	request.Add(1, "CUST-2", []byte(`{"name":"Ola"}`))
	request.Add(2, "CUST-3", []byte(`{}`))
	_, err = js.PublishMsg(ctx, request.Msg())
	must(err)

	replies, err := stream.EnsureRecorder(ctx, js)
	must(err)
	for slots, all := 0, -1; slots != all; { // messages may come in any order
		msg, err := replies.Next()
		must(err)
		reply, err := wire.ParseReply(msg.Subject(), msg.Headers(), msg.Data(), wire.Limits{})
		must(err)
		must(msg.Ack())
		slots += len(reply.Slots)
		for _, slot := range reply.Slots {
			if slot.Err != nil {
				fmt.Println(slot.Ordinal, slot.Err)
				continue
			}
			fmt.Println(slot.Ordinal, string(slot.Data))
		}
		all = max(all, reply.Answered)
	}
	end()
	must(<-done)
	// Unordered output:
	// 2 no_name: CUST-3 has no name
	// 1 unknown_account: there is no CUST-2
	// 0 {"text":"Kari, you have 120."}
}
