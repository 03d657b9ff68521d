package main

import (
	"context"

	"github.com/tranchehq/tranche/endpoints"
)

// Names of the endpoints.
const (
	StatementEndpoint = "customer-statement"
	AccountEndpoint   = "customer-account"
	RateEndpoint      = "exchange-rate"
)

// Customer is what a run knows of a customer.
type Customer struct {
	Name     string `json:"name"`
	Account  string `json:"account"`
	Currency string `json:"currency"`
}

// Statement is what the run wants.
type Statement struct {
	Name     string  `json:"name"`
	Balance  float64 `json:"balance"`
	Currency string  `json:"currency"`
}

// memory is what a customer's statement has to know in its second stage.
type memory struct{ Name, Currency string }

type stage = endpoints.Stage[Customer, Statement, memory, endpoints.None]

// Whom the statements ask. Neither knows anything of flows.
//
//nolint:gochecknoglobals // a target is a name and two types, and never changes
var (
	accounts = endpoints.To[AccountQuery, Account](AccountEndpoint)
	rates    = endpoints.To[RateQuery, Rate](RateEndpoint)
)

// handleStatements serves statements. It reads like a function: ask for the account and, when it is in another
// currency, for the rate; then put both together. In between no one waits, and another instance may go on.
func handleStatements(svc *endpoints.Service) error {
	return endpoints.HandleFlow(svc, StatementEndpoint, []func(context.Context, *stage) error{
		func(_ context.Context, s *stage) error {
			for _, c := range s.Items() {
				if c.In.Account == "" {
					c.Fail("no_account", "%s has no account", c.Key)
					continue
				}
				c.State = memory{c.In.Name, c.In.Currency}
				accounts.Ask(c, AccountQuery{ID: c.In.Account})
				if c.In.Currency != "EUR" {
					rates.Ask(c, RateQuery{To: c.In.Currency})
				}
			}
			return nil
		},
		func(_ context.Context, s *stage) error {
			for _, c := range s.Items() {
				balance := accounts.Answer(c).Balance
				if rates.Asked(c) {
					balance *= rates.Answer(c).Factor
				}
				c.Reply(Statement{Name: c.State.Name, Balance: balance, Currency: c.State.Currency})
			}
			return nil
		},
	})
}
