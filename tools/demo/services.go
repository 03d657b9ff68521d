package demo

import (
	"cmp"
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

// planText is the plan; its step names are the function's. BRANCHES is replaced by the branches service's URL.
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

// connectionsText allows the private address, and binds the secret to it.
const connectionsText = `secrets:
  branch-token: {file: servers/` + tokenFile + `, hosts: ["BRANCHES"]}
http:
  allow_private: ["ADDRESS"]
`

func placed(text, branches string) []byte {
	address := strings.TrimPrefix(branches, "http://")
	return []byte(strings.NewReplacer("BRANCHES", branches, "ADDRESS", address).Replace(text))
}

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
	tokenVariable = "BANK_BRANCH_TOKEN"
	// databaseVariable has the nodes' database, for the composing node.
	databaseVariable = "BANK_TRANCHE_DATABASE"
	// branchRate is the limit of the branches service, in customers per second.
	branchRate = 4000
)

// ServiceConfig selects one of the demo's processes. The rest comes from the environment: NATS_URL and the other
// variables of endpoints.Connect, and PostgreSQL's PGHOST etc.
type ServiceConfig struct {
	Name string    // a database of the bank; statements is the composing node
	Out  io.Writer // gets a line of JSON when the service is ready
	Log  *zap.Logger
}

type ready struct {
	Service string `json:"service"`
	URL     string `json:"url,omitempty"`
}

// RunService runs one of the demo's processes until ctx ends.
func RunService(ctx context.Context, config ServiceConfig) error {
	config.Log = cmp.Or(config.Log, zap.NewNop())
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
			Ready: func() { _ = config.announce(ready{Service: config.Name}) }, // a failed write shows as the end of the output
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
