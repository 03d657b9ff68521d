package demo

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
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

// planText is the plan that the person sees. The names of steps are those that the function knows; BRANCHES is the URL
// of the branches service.
const planText = `name: ` + planName + `
items:
  schema:
    type: object
    required: [account, form]
    properties: {account: {type: string, pattern: "^[0-9]+$"}, form: {type: string}}
steps:
- {name: ` + yearend.StepAccounts + `, endpoint: ` + bank.AccountsEndpoint + `}
- {name: ` + yearend.StepTransactions + `, direct: ` + bank.TransactionsEndpoint + `}
- name: ` + yearend.StepBranches + `
  max_attempts: 10
  http:
    url: "BRANCHES/customers/{key}/branch"
    headers: {Authorization: "Bearer {secret.branch-token}"}
    concurrency: 16
- name: ` + stepStatement + `
  needs: [` + yearend.StepAccounts + `, ` + yearend.StepTransactions + `, ` + yearend.StepBranches + `]
  local: ` + yearend.Function + `
- name: ` + stepSend + `
  needs: [` + stepStatement + `]
  barrier: approve
  endpoint: ` + bank.MailEndpoint + `
`

// connectionsText says what plans may reach: the address, which is private, and the secret, which goes nowhere else.
const connectionsText = `secrets:
  branch-token: {file: servers/` + tokenFile + `, hosts: ["BRANCHES"]}
http:
  allow_private: ["ADDRESS"]
`

// placed puts the branches service into a text.
func placed(text, branches string) []byte {
	address := strings.TrimPrefix(branches, "http://")
	return []byte(strings.NewReplacer("BRANCHES", branches, "ADDRESS", address).Replace(text))
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

const (
	// tokenVariable has the token that the branches service asks for.
	tokenVariable = "BANK_BRANCH_TOKEN"
	// databaseVariable has the database of the nodes, for the one that composes.
	databaseVariable = "BANK_TRANCHE_DATABASE"
	// branchRate is how many customers a second the branches service answers for.
	branchRate = 4000
)

// ServiceConfig says which process of the demo to be. What it works on comes from the environment: NATS_URL and the
// other variables that endpoints.Connect reads, and PostgreSQL's own, PGHOST and so on.
type ServiceConfig struct {
	Name string    // of a database of the bank; statements is the node that composes
	Out  io.Writer // is told, as JSON, once the service is there
	Log  *zap.Logger
}

// ready is what a service says of itself.
type ready struct {
	Service string `json:"service"`
	URL     string `json:"url,omitempty"`
}

// RunService is one of the demo's processes, until ctx ends.
func RunService(ctx context.Context, config ServiceConfig) error {
	if config.Log == nil {
		config.Log = zap.NewNop()
	}
	db, err := pgxpool.New(ctx, "")
	if err != nil {
		return fmt.Errorf("connect to the database of %s: %w", config.Name, err)
	}
	defer db.Close()
	if config.Name == branchesDB {
		return serveBranches(ctx, config, db)
	}
	nc, err := endpoints.Connect(nats.Name(config.Name), endpoints.LogTo(config.Log))
	if err != nil {
		return err
	}
	defer nc.Close()
	switch config.Name {
	case accountsDB:
		return bank.ServeAccounts(ctx, nc, db, config.Log)
	case transactionsDB:
		return bank.ServeTransactions(ctx, nc, db, config.Log)
	case mailDB:
		return bank.ServeMail(ctx, nc, db, stepStatement, config.Log)
	case statementsDB:
		return yearend.RunNode(ctx, yearend.NodeConfig{
			Database: os.Getenv(databaseVariable), NATS: nc, Ledger: bank.NewLedger(db), Log: config.Log,
			Ready: func() { _ = config.announce(ready{Service: config.Name}) }, // whoever waits sees the end of the output
		})
	default:
		return fmt.Errorf("the demo has no service %q", config.Name)
	}
}

func serveBranches(ctx context.Context, config ServiceConfig, db *pgxpool.Pool) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for branches: %w", err)
	}
	if err := config.announce(ready{config.Name, "http://" + listener.Addr().String()}); err != nil {
		_ = listener.Close()
		return err
	}
	return bank.ServeBranches(ctx, listener, db, bank.BranchesConfig{Token: os.Getenv(tokenVariable), Rate: branchRate})
}

func (c ServiceConfig) announce(r ready) error {
	if err := json.NewEncoder(c.Out).Encode(r); err != nil {
		return fmt.Errorf("say where %s is: %w", c.Name, err)
	}
	return nil
}
