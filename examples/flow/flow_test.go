package main

import (
	"context"
	"testing"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/endpointstest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func serve(svc *endpoints.Service) error {
	if err := handleAccounts(svc, map[string]float64{"A-1": 100, "A-2": 80}); err != nil {
		return err
	}
	if err := handleRates(svc, map[string]float64{"USD": 1.25}); err != nil {
		return err
	}
	return handleStatements(svc)
}

func customers() []endpointstest.Part {
	return []endpointstest.Part{
		endpointstest.Item("CUST-1", Customer{Name: "Kari", Account: "A-1", Currency: "EUR"}),
		endpointstest.Item("CUST-2", Customer{Name: "Ola", Account: "A-2", Currency: "USD"}),
		endpointstest.Item("CUST-3", Customer{Name: "Per", Currency: "EUR"}),
		endpointstest.Item("CUST-4", Customer{Name: "Ida", Account: "A-9", Currency: "USD"}),
		endpointstest.Item("CUST-5", Customer{Name: "Eva", Account: "A-1", Currency: "XXX"}),
	}
}

func checkStatements(t *testing.T, reply *endpointstest.Reply) {
	t.Helper()
	for key, want := range map[string]Statement{
		"CUST-1": {Name: "Kari", Balance: 100, Currency: "EUR"}, "CUST-2": {Name: "Ola", Balance: 100, Currency: "USD"},
	} {
		testenv.Same(t, endpointstest.Result[Statement](t, reply, key), want, "%s", key)
	}
	for key, code := range map[string]string{
		"CUST-3": "no_account", "CUST-4": "unknown_account", "CUST-5": "unknown_currency",
	} {
		if err := reply.Err(key); err == nil || err.Code != code {
			t.Errorf("%s: %v, want %s", key, err, code)
		}
	}
}

func TestAnotherInstanceGoesOn(t *testing.T) {
	t.Parallel()
	kit := endpointstest.New(t)
	first := kit.Serve(serve)
	kill := kit.KillBetween(StatementEndpoint, 0)
	pending := kit.Post(StatementEndpoint, customers()...)
	kill.Wait()
	first.Restart()
	checkStatements(t, pending.Wait())
}

func TestTheServicesRunTogether(t *testing.T) {
	t.Parallel()
	kit := endpointstest.New(t)
	nc := kit.Conn()
	stop := testenv.Keep(t, t.Errorf, "the services", func(ctx context.Context) error { return run(ctx, nc) })
	kari := Customer{Name: "Kari", Account: "A-2", Currency: "NOK"}
	reply := kit.Send(StatementEndpoint, endpointstest.Item("CUST-1", kari))
	testenv.Same(t, endpointstest.Result[Statement](t, reply, "CUST-1").Balance, 80.5*11.5, "the balance")
	stop()
}
