package demo

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"text/template"

	"github.com/tranchehq/tranche/examples/bank"
	"github.com/tranchehq/tranche/examples/yearend"
)

const (
	planName        = "statements"
	stepStatement   = "statement"
	stepSend        = "send"
	planFile        = "statements.yaml"
	connectionsFile = "connections.yaml"
	tokenFile       = "branch.token"
)

// planText is the plan that the person sees. The names of steps are those that the function knows.
const planText = `name: {{.Plan}}
items:
  schema:
    type: object
    required: [account, form]
    properties: {account: {type: string, pattern: "^[0-9]+$"}, form: {type: string}}
steps:
- {name: {{.StepAccounts}}, endpoint: {{.Accounts}}}
- {name: {{.StepTransactions}}, request: {{.Transactions}}}
- name: {{.StepBranches}}
  max_attempts: 10
  http:
    url: "{{.Branches}}/customers/{key}/branch"
    headers: {Authorization: "Bearer {secret.branch-token}"}
    concurrency: 16
- name: {{.StepStatement}}
  needs: [{{.StepAccounts}}, {{.StepTransactions}}, {{.StepBranches}}]
  local: {{.Function}}
- name: {{.StepSend}}
  needs: [{{.StepStatement}}]
  barrier: approve
  endpoint: {{.Mail}}
`

// connectionsText says what plans may reach: the address is private, and the secret is for nobody else.
const connectionsText = `secrets:
  branch-token: {file: {{.Token}}, hosts: ["{{.Branches}}"]}
http:
  allow_private: ["{{.Address}}"]
`

// placed is what differs from one demo to the next in these files.
type placed struct {
	Plan, Accounts, Transactions, Mail           string // the plan's name, and the endpoints
	StepAccounts, StepTransactions, StepBranches string
	StepStatement, StepSend                      string
	Function                                     string
	Branches, Address                            string // URL, and the same without the scheme
	Token                                        string // file
}

func place(branches string) placed {
	return placed{
		Plan: planName, Accounts: bank.AccountsEndpoint, Transactions: bank.TransactionsEndpoint,
		StepAccounts: yearend.StepAccounts, StepTransactions: yearend.StepTransactions,
		Mail: bank.MailEndpoint, StepBranches: yearend.StepBranches, StepStatement: stepStatement,
		StepSend: stepSend, Function: yearend.Function,
		Branches: branches, Address: strings.TrimPrefix(branches, "http://"), Token: "servers/" + tokenFile,
	}
}

// write makes a file of a text.
func (p placed) write(path, text string) error {
	var out strings.Builder
	if err := template.Must(template.New(path).Parse(text)).Execute(&out, p); err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	if err := os.WriteFile(path, []byte(out.String()), 0o600); err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	return nil
}

// writeToken makes a token that only this demo's services know.
func writeToken(path string) (string, error) {
	random := make([]byte, 16)
	_, _ = rand.Read(random) // never fails
	token := hex.EncodeToString(random)
	if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
		return "", fmt.Errorf("make a token: %w", err)
	}
	return token, nil
}
