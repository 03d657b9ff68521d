// Package yearend is an example of an embedded node: a local step composes an account's year-end statement from the
// answers of three services, as a PDF or as JSON.
//
// [Parts.PDF] uses vector drawing and standard fonts: a page of about 9 kB in about a millisecond, with equal bytes
// for equal parts. [Read] returns the printed figures, to compare them with the bank's books.
//
// Everything is safe for concurrent use.
package yearend

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/examples/bank"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/orchestrator/embed"
)

// Statement is an account's year, in cents: Opening + In - Out = Closing.
type Statement struct {
	Account   int32  `json:"account"`
	Number    string `json:"number"`
	Owner     string `json:"owner"`
	Branch    string `json:"branch"`
	Year      int    `json:"year"`
	Movements int64  `json:"movements"`
	Opening   int64  `json:"opening"`
	In        int64  `json:"in"`
	Out       int64  `json:"out"`
	Closing   int64  `json:"closing"`
}

// Parts is what a statement is made of: each service's answer.
type Parts struct {
	Account bank.Account
	Year    bank.Year
	Branch  bank.Branch
}

// UnbalancedError means that an account's balances and movements do not agree.
type UnbalancedError struct {
	Opening, Sum, Closing int64
}

func (e *UnbalancedError) Error() string {
	return fmt.Sprintf("%s at the beginning and %s of movements do not make %s",
		amount(e.Opening), amount(e.Sum), amount(e.Closing))
}

// Statement sums up the year. It returns an [UnbalancedError] if the account does not balance.
func (p *Parts) Statement() (Statement, error) {
	s := Statement{
		Account: p.Account.Account, Number: p.Account.Number, Owner: p.Account.Owner, Branch: p.Branch.Name,
		Year: p.Year.Year, Opening: p.Account.Opening, Closing: p.Account.Closing,
	}
	for _, month := range p.Year.Months {
		s.Movements += month.Movements
		s.In += month.In
		s.Out += month.Out
	}
	if s.Opening+s.In-s.Out != s.Closing {
		return s, &UnbalancedError{Opening: s.Opening, Sum: s.In - s.Out, Closing: s.Closing}
	}
	return s, nil
}

func (p *Parts) balances() [12]int64 {
	var all [12]int64
	balance := p.Account.Opening
	for i, month := range p.Year.Months {
		balance += month.In - month.Out
		all[i] = balance
	}
	return all
}

// minus is an en dash: a hyphen is too short next to digits, and the fonts have no minus sign.
const minus = "–"

// amount formats cents with separators: 1,234.56.
func amount(cents int64) string {
	sign := ""
	if cents < 0 {
		sign, cents = minus, -cents
	}
	return sign + grouped(cents/100) + "." + strconv.FormatInt(100+cents%100, 10)[1:]
}

// grouped formats a non-negative number with separators: 1,234,567.
func grouped(n int64) string {
	digits := strconv.FormatInt(n, 10)
	var b strings.Builder
	for i, digit := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(digit)
	}
	return b.String()
}

// short formats cents for an axis, in whole units: 1,200 or 1.5 M.
func short(cents int64) string {
	sign, whole := "", cents/100
	if whole < 0 {
		sign, whole = minus, -whole
	}
	for _, unit := range []struct {
		size int64
		name string
	}{{1_000_000_000, " bn"}, {1_000_000, " M"}} {
		if whole >= unit.size {
			return sign + strconv.FormatFloat(float64(whole)/float64(unit.size), 'f', -1, 64) + unit.name
		}
	}
	return sign + grouped(whole)
}

// Function is the name of [Compose] in plans.
const Function = "statement_pdf"

// Steps whose parts a statement needs.
const (
	StepAccounts     = "accounts"
	StepTransactions = "transactions"
	StepBranches     = "branches"
)

// Codes of Compose's errors.
const (
	CodeUnbalanced  = "unbalanced"
	CodeMissingPart = "missing_part"
	CodeUnknownForm = "unknown_form"
)

// Forms that an item's payload can request.
const (
	PDFForm  = "pdf"
	JSONForm = "json"
)

// Wish is an item's payload as far as a statement needs it.
type Wish struct {
	Form string `json:"form"`
}

// Compose makes a statement from the parts of earlier steps.
func Compose(_ context.Context, item *fetch.Item) (fetch.Part, error) {
	var wish Wish
	if err := item.Decode(&wish); err != nil {
		return fetch.Part{}, err
	}
	if wish.Form != PDFForm && wish.Form != JSONForm {
		return fetch.Part{}, endpoints.Fail(CodeUnknownForm, "the form is %q; there are pdf and json", wish.Form)
	}
	var p Parts
	for step, into := range map[string]any{
		StepAccounts: &p.Account, StepTransactions: &p.Year, StepBranches: &p.Branch,
	} {
		there, err := item.DecodePart(step, into)
		if err == nil && !there {
			err = endpoints.Fail(CodeMissingPart, "the plan does not give it the part of step %s", step)
		}
		if err != nil {
			return fetch.Part{}, err
		}
	}
	statement, err := p.Statement()
	if err != nil {
		return fetch.Part{}, endpoints.Fail(CodeUnbalanced, "%v", err)
	}
	if wish.Form == JSONForm {
		return fetch.JSON(statement)
	}
	pdf, err := p.PDF()
	if err != nil {
		return fetch.Part{}, fmt.Errorf("account %s: %w", item.Key, err)
	}
	return fetch.Part{Data: pdf, ContentType: ContentType}, nil
}

// NodeConfig configures RunNode.
type NodeConfig struct {
	Database string       // URL of Tranche's database
	NATS     *nats.Conn   // of the servers of tranche serve; the caller closes it
	Ledger   *bank.Ledger // records composed accounts; nil: none
	Log      *zap.Logger  // nil: none
	Ready    func()       // called once the node is ready; nil: not called
}

// RunNode runs an embedded node with this package's function until ctx ends. It shares the work of the database's
// nodes, and is the only one to compose. tranche serve must have migrated the database.
func RunNode(ctx context.Context, config NodeConfig) error {
	pool, err := pgxpool.New(ctx, config.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	node, err := embed.New(pool, config.NATS, embed.Config{
		Log: config.Log, Version: "yearend",
		Locals: map[string]fetch.Fetcher{Function: recorded(config.Ledger, fetch.Each(Compose))},
	})
	if err != nil {
		return err
	}
	defer node.Close()
	if config.Ready != nil {
		go func() {
			select {
			case <-node.Ready():
				config.Ready()
			case <-ctx.Done():
			}
		}()
	}
	return node.Run(ctx)
}

// recorded writes chunks to a ledger before they are processed.
func recorded(ledger *bank.Ledger, next fetch.Fetcher) fetch.Fetcher {
	if ledger == nil {
		return next
	}
	return fetch.Func(func(ctx context.Context, req *fetch.Request) ([]fetch.Slot, error) {
		accounts := make([]int32, len(req.Items))
		for i := range req.Items {
			var c bank.Customer
			if err := req.Items[i].Decode(&c); err != nil {
				return nil, err
			}
			accounts[i] = c.Account
		}
		if err := ledger.Write(ctx, accounts...); err != nil {
			return nil, err
		}
		return next.Fetch(ctx, req)
	})
}
