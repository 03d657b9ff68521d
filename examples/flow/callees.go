package main

import (
	"context"

	"github.com/tranchehq/tranche/endpoints"
)

// AccountQuery requests an account.
type AccountQuery struct {
	ID string `json:"id"`
}

// Account is a balance in euros.
type Account struct {
	Balance float64 `json:"balance"`
}

// RateQuery requests the exchange rate from euros.
type RateQuery struct {
	To string `json:"to"`
}

// Rate is an exchange rate.
type Rate struct {
	Factor float64 `json:"factor"`
}

// handleAccounts serves accounts from a map; a real service would run one query for chunk.Items().
func handleAccounts(svc *endpoints.Service, balances map[string]float64) error {
	return endpoints.HandleList(svc, AccountEndpoint,
		func(_ context.Context, chunk *endpoints.Chunk[AccountQuery, Account]) error {
			for _, item := range chunk.Items() {
				balance, known := balances[item.In.ID]
				if !known {
					item.Fail("unknown_account", "there is no account %s", item.In.ID)
					continue
				}
				item.Reply(Account{Balance: balance})
			}
			return nil
		})
}

func handleRates(svc *endpoints.Service, factors map[string]float64) error {
	return endpoints.HandleEach(svc, RateEndpoint, func(_ context.Context, in RateQuery) (Rate, error) {
		factor, known := factors[in.To]
		if !known {
			return Rate{}, endpoints.Fail("unknown_currency", "there is no rate for %s", in.To)
		}
		return Rate{Factor: factor}, nil
	})
}
