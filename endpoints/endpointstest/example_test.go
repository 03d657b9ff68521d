package endpointstest_test

import (
	"context"
	"fmt"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/endpointstest"
	"github.com/tranchehq/tranche/endpoints/wire"
)

type deposit struct {
	Cents int `json:"cents"`
}

type interest struct {
	Cents int `json:"cents"`
}

// yearEnd is the handler to be tested.
func yearEnd(_ context.Context, chunk *endpoints.Chunk[deposit, interest]) error {
	for _, item := range chunk.Items() {
		if item.In.Cents < 0 {
			item.Fail("overdrawn", "the balance is %d cents", item.In.Cents)
			continue
		}
		item.Reply(interest{Cents: item.In.Cents * 15 / 1000})
	}
	return nil
}

// In a test, t is the test's own.
func Example() {
	t := begin()
	defer t.end()

	kit := endpointstest.New(t)
	kit.Serve(func(svc *endpoints.Service) error {
		return endpoints.HandleList(svc, "interest", yearEnd)
	})
	reply := kit.Send("interest",
		endpointstest.Item("ACC-1", deposit{Cents: 20000}), endpointstest.Item("ACC-2", deposit{Cents: -300}))

	fmt.Println(endpointstest.Result[interest](t, reply, "ACC-1").Cents)
	fmt.Println(reply.Err("ACC-2"))
	// Output:
	// 300
	// overdrawn: the balance is -300 cents
}

// A service of a step that needs others gets their parts with its items.
func ExampleInputPart() {
	t := begin()
	defer t.end()

	kit := endpointstest.New(t)
	kit.Serve(func(svc *endpoints.Service) error {
		return endpoints.HandleList(svc, "line", func(ctx context.Context, chunk *endpoints.Chunk[deposit, string]) error {
			for _, item := range chunk.Items() {
				earned, there, err := endpoints.PartOf[interest](ctx, item, "interest")
				if err != nil {
					return err
				}
				item.Reply(fmt.Sprintln(item.In.Cents, earned.Cents, there))
			}
			return nil
		})
	})
	reply := kit.Send("line", endpointstest.Item("ACC-1", deposit{Cents: 20000}),
		endpointstest.InputPart("interest", interest{Cents: 300}))

	fmt.Print(endpointstest.Result[string](t, reply, "ACC-1"))
	// Output: 20000 300 true
}

// An instance dies when it has answered a chunk and not acknowledged it. The next one answers the chunk again.
func ExampleKit_KillBetween() {
	t := begin()
	defer t.end()

	kit := endpointstest.New(t)
	kit.Serve(func(svc *endpoints.Service) error {
		return endpoints.HandleList(svc, "interest", yearEnd)
	})
	kill := kit.KillBetween("interest", 0)
	pending := kit.Post("interest", endpointstest.Item("ACC-1", deposit{Cents: 20000}))
	dead := kill.Wait()
	dead.Restart()

	first, second := pending.Wait(), pending.Wait()
	fmt.Println(endpointstest.Result[interest](t, first, "ACC-1").Cents)
	fmt.Println(endpointstest.Result[interest](t, second, "ACC-1").Cents)
	fmt.Println("by the same instance:", first.Service == second.Service)
	// Output:
	// 300
	// 300
	// by the same instance: false
}

type greeting = endpoints.Stage[string, string, endpoints.None, endpoints.None]

var names = endpoints.To[string, string]("names")

// A flow is tested by itself: a stub stands in for the endpoint that it asks.
func ExampleKit_Stub() {
	t := begin()
	defer t.end()

	kit := endpointstest.New(t)
	kit.Serve(func(svc *endpoints.Service) error {
		return endpoints.HandleFlow(svc, "greet", []func(context.Context, *greeting) error{
			func(_ context.Context, s *greeting) error {
				for _, item := range s.Items() {
					names.Ask(item, item.In)
				}
				return nil
			},
			func(_ context.Context, s *greeting) error {
				for _, item := range s.Items() {
					item.Reply("Hello " + names.Answer(item))
				}
				return nil
			},
		})
	})
	stub := kit.Stub("names", func(asked []endpointstest.Asked) ([]wire.Slot, error) {
		return []wire.Slot{asked[0].Answer("Ada"), asked[1].Fail("nameless", "no one knows")}, nil
	})
	reply := kit.Send("greet", endpointstest.Item("1", "first"), endpointstest.Item("2", "second"))

	fmt.Println(endpointstest.Result[string](t, reply, "1"))
	fmt.Println(reply.Err("2"))
	fmt.Println(string(stub.Requests()[0][1].Payload))
	// Output:
	// Hello Ada
	// nameless: no one knows
	// "second"
}
