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

// Customer is an item's payload.
type Customer struct {
	Name     string `json:"name"`
	Account  string `json:"account"`
	Currency string `json:"currency"`
}

// Statement is an item's result.
type Statement struct {
	Name     string  `json:"name"`
	Balance  float64 `json:"balance"`
	Currency string  `json:"currency"`
}

// memory is the state kept for a statement's second stage.
type memory struct{ Name, Currency string }

type stage = endpoints.Stage[Customer, Statement, memory, endpoints.None]

// The targets of the flow. Their services know nothing of flows.
//
//nolint:gochecknoglobals // a target is a name and two types, and never changes
var (
	accounts = endpoints.To[AccountQuery, Account](AccountEndpoint)
	rates    = endpoints.To[RateQuery, Rate](RateEndpoint)
)

// handleStatements serves statements. It reads like a function: query the account and, for other currencies, the
// rate, then combine the answers. Nothing waits in between, and another instance may continue.
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
