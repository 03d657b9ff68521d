// Package bank is an example of a bank's four services, each with its own database:
//
//   - accounts answers chunks over JetStream, each with one query;
//   - transactions does the same over core NATS, without persistence, because repeating a request is cheap;
//   - branches is a plain HTTP service that does not know Tranche: one customer per request, with a token and a rate
//     limit, above which it answers 429 with Retry-After;
//   - mail posts what was composed, over JetStream: it must neither lose nor repeat a statement.
//
// An account that a service cannot answer gets an error; the rest of the chunk is answered. Before it answers, each
// service records the accounts in a [Ledger], which shows what was requested. tranche demo creates the databases and
// runs the services. Everything is safe for concurrent use.
package bank

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
)

// Names of the endpoints.
const (
	AccountsEndpoint     = "bank_accounts"
	TransactionsEndpoint = "bank_transactions"
	MailEndpoint         = "bank_mail"
)

// Customer is an item's payload: a CSV row with the column account.
type Customer struct {
	Account int32 `json:"account,string"`
}

type accounts struct {
	db     *pgxpool.Pool
	ledger *Ledger
}

// ServeAccounts serves accounts until ctx ends. The caller closes the connections.
func ServeAccounts(ctx context.Context, nc *nats.Conn, db *pgxpool.Pool, log *zap.Logger) error {
	svc, err := endpoints.New(nc, endpoints.Config{Name: "accounts", Version: "1.0.0", Log: log})
	if err != nil {
		return err
	}
	s := accounts{db: db, ledger: NewLedger(db)}
	if err := endpoints.HandleList(svc, AccountsEndpoint, s.answer); err != nil {
		return err
	}
	return svc.Run(ctx)
}

// accountRow is a row of selectAccounts. nil is NULL, or a missing account.
type accountRow struct {
	ID                                         *int32
	Number, Kind, Opened, Owner, Street, Place *string
	Opening, Closing                           *int64
}

// selectAccounts returns a row for each ID, in the given order, so that row n belongs to item n.
const selectAccounts = `
SELECT a.id, a.number, a.kind, a.opened::text, a.owner, a.street, a.place, a.opening, a.closing
FROM unnest($1::int[]) WITH ORDINALITY AS asked (id, place_asked)
LEFT JOIN account a USING (id)
ORDER BY place_asked`

func (s accounts) answer(ctx context.Context, chunk *endpoints.Chunk[Customer, Account]) error {
	items := chunk.Items()
	rows, err := ask[accountRow](ctx, s.db, s.ledger, selectAccounts, ids(chunk))
	if err != nil {
		return err
	}
	if len(rows) != len(items) {
		return fmt.Errorf("%d rows for %d accounts", len(rows), len(items))
	}
	for i, item := range items {
		switch row := rows[i]; {
		case row.ID == nil:
			item.Fail(CodeUnknownAccount, unknownAccount)
		case row.Opening == nil || row.Closing == nil:
			item.Fail(CodeNoBalance, "the account has no balance")
		default:
			item.Reply(Account{
				Account: *row.ID, Number: *row.Number, Kind: *row.Kind, Opened: *row.Opened, Owner: *row.Owner,
				Street: *row.Street, Place: *row.Place, Opening: *row.Opening, Closing: *row.Closing,
			})
		}
	}
	return nil
}

func ids[Out any](chunk *endpoints.Chunk[Customer, Out]) []int32 {
	var ids []int32
	for _, item := range chunk.Items() {
		ids = append(ids, item.In.Account)
	}
	return ids
}

// ask writes all accounts to the ledger and then runs one query for them. Its errors are retryable.
func ask[Row any](ctx context.Context, db *pgxpool.Pool, ledger *Ledger, sql string, ids []int32) ([]Row, error) {
	if err := ledger.Write(ctx, ids...); err != nil {
		return nil, endpoints.Retry("bank", "%v", err)
	}
	rows, err := db.Query(ctx, sql, ids)
	if err != nil {
		return nil, endpoints.Retry("bank", "ask the bank: %v", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Row])
	if err != nil {
		return nil, endpoints.Retry("bank", "ask the bank: %v", err)
	}
	return all, nil
}

// BusinessYear is the year of the bank's movements.
const BusinessYear = 2025

type transactions struct {
	db     *pgxpool.Pool
	ledger *Ledger
}

// ServeTransactions serves the movements of accounts until ctx ends. The caller closes the connections.
func ServeTransactions(ctx context.Context, nc *nats.Conn, db *pgxpool.Pool, log *zap.Logger) error {
	svc, err := endpoints.New(nc, endpoints.Config{Name: "transactions", Version: "1.0.0", Log: log})
	if err != nil {
		return err
	}
	s := transactions{db: db, ledger: NewLedger(db)}
	if err := endpoints.HandleList(svc, TransactionsEndpoint, s.answer); err != nil {
		return err
	}
	return svc.Run(ctx)
}

// monthRow is a month of an account. Broken counts movements without an amount.
type monthRow struct {
	Account            int32
	Month              int
	Movements, In, Out int64
	Broken             int64
}

const selectMonths = `
SELECT account, extract(month FROM booked)::int, count(*), coalesce(sum(amount) FILTER (WHERE amount > 0), 0)::bigint,
    coalesce(-sum(amount) FILTER (WHERE amount < 0), 0)::bigint, count(*) - count(amount)
FROM movement WHERE account = ANY($1) GROUP BY 1, 2`

// answer returns a year for every account, empty without movements.
func (s transactions) answer(ctx context.Context, chunk *endpoints.Chunk[Customer, Year]) error {
	rows, err := ask[monthRow](ctx, s.db, s.ledger, selectMonths, ids(chunk))
	if err != nil {
		return err
	}
	years := map[int32]*Year{}
	movements, broken := map[int32]int64{}, map[int32]int64{}
	for _, row := range rows {
		year := years[row.Account]
		if year == nil {
			year = &Year{}
			years[row.Account] = year
		}
		year.Months[row.Month-1] = Month{Movements: row.Movements, In: row.In, Out: row.Out}
		movements[row.Account] += row.Movements
		broken[row.Account] += row.Broken
	}
	for _, item := range chunk.Items() {
		account := item.In.Account
		if n := broken[account]; n > 0 {
			item.Fail(CodeBrokenMovement, "%d of %d movements without an amount", n, movements[account])
			continue
		}
		year := Year{Year: BusinessYear}
		if found := years[account]; found != nil {
			year.Months = found.Months
		}
		item.Reply(year)
	}
	return nil
}

// retryAfter is the Retry-After of refused requests, in seconds.
const retryAfter = 1

// shutdownTimeout bounds the requests in progress at shutdown.
const shutdownTimeout = 5 * time.Second

const unknownAccount = "the bank has no such account"

// BranchesConfig configures ServeBranches.
type BranchesConfig struct {
	Token string  // required bearer token; empty: none
	Rate  float64 // customers per second; 0: unlimited
}

type branches struct {
	db      *pgxpool.Pool
	ledger  *Ledger
	config  BranchesConfig
	limit   *limit
	refused atomic.Int64
}

// ServeBranches serves GET /customers/{account}/branch on the listener until ctx ends, and closes the listener.
func ServeBranches(ctx context.Context, on net.Listener, db *pgxpool.Pool, config BranchesConfig) error {
	s := &branches{db: db, ledger: NewLedger(db), config: config,
		limit: &limit{rate: config.Rate, tokens: max(1, config.Rate)}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /customers/{account}/branch", s.branch)
	mux.HandleFunc("GET /refused", s.refusals)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: shutdownTimeout}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(on) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve branches at %s: %w", on.Addr(), err)
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	return server.Shutdown(ctx)
}

// selectBranch returns a customer's row. The branch columns are NULL if the branch does not exist.
const selectBranch = `
SELECT c.branch, b.name, b.street, b.place, b.phone, c.adviser
FROM customer c LEFT JOIN branch b ON b.id = c.branch
WHERE c.account = $1`

func (s *branches) branch(w http.ResponseWriter, r *http.Request) {
	want := "Bearer " + s.config.Token
	if s.config.Token != "" && subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte(want)) != 1 {
		refuse(w, http.StatusUnauthorized, "the token is missing or wrong")
		return
	}
	if !s.limit.allow(time.Now()) {
		s.refused.Add(1)
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
		refuse(w, http.StatusTooManyRequests, fmt.Sprintf("at most %.0f customers a second", s.config.Rate))
		return
	}
	account, err := strconv.ParseInt(r.PathValue("account"), 10, 32)
	if err != nil {
		refuse(w, http.StatusNotFound, unknownAccount)
		return
	}
	b, err := s.find(r.Context(), int32(account))
	var gap gapError
	switch {
	case errors.As(err, &gap):
		refuse(w, http.StatusNotFound, string(gap))
	case err != nil:
		refuse(w, http.StatusServiceUnavailable, err.Error())
	default:
		answer(w, http.StatusOK, b)
	}
}

type gapError string

func (e gapError) Error() string { return string(e) }

func (s *branches) find(ctx context.Context, account int32) (Branch, error) {
	if err := s.ledger.Write(ctx, account); err != nil {
		return Branch{}, err
	}
	var b Branch
	var name, street, place, phone *string
	err := s.db.QueryRow(ctx, selectBranch, account).Scan(&b.Branch, &name, &street, &place, &phone, &b.Adviser)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return b, gapError(unknownAccount)
	case err != nil:
		return b, fmt.Errorf("ask the bank: %w", err)
	case name == nil:
		return b, gapError(fmt.Sprintf("branch %d does not exist", b.Branch))
	}
	b.Name, b.Street, b.Place, b.Phone = *name, *street, *place, *phone
	return b, nil
}

func (s *branches) refusals(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]int64{"refused": s.refused.Load()})
}

func refuse(w http.ResponseWriter, status int, reason string) { http.Error(w, reason, status) }

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may have gone
}

// Letter is the answer of the mail service.
type Letter struct {
	Bytes       int    `json:"bytes"`
	ContentType string `json:"content_type"`
}

// ServeMail posts the statements of accounts, the parts of the named step, until ctx ends.
func ServeMail(ctx context.Context, nc *nats.Conn, db *pgxpool.Pool, statement string, log *zap.Logger) error {
	svc, err := endpoints.New(nc, endpoints.Config{Name: "mail", Version: "1.0.0", Log: log})
	if err != nil {
		return err
	}
	ledger := NewLedger(db)
	post := func(ctx context.Context, chunk *endpoints.Chunk[Customer, Letter]) error {
		if err := ledger.Write(ctx, ids(chunk)...); err != nil {
			return endpoints.Retry("bank", "%v", err)
		}
		for _, item := range chunk.Items() {
			part, there, err := item.Part(ctx, statement)
			switch {
			case err != nil:
				return err
			case there:
				item.Reply(Letter{len(part.Data), part.ContentType})
			default:
				item.Fail(CodeNoStatement, "there is no part of a step %s to post", statement)
			}
		}
		return nil
	}
	if err := endpoints.HandleList(svc, MailEndpoint, post); err != nil {
		return err
	}
	return svc.Run(ctx)
}

// limit is a token bucket for a second's requests.
type limit struct {
	mu     sync.Mutex
	rate   float64 // per second; 0: unlimited
	tokens float64
	last   time.Time
}

func (l *limit) allow(now time.Time) bool {
	if l.rate == 0 {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.last.IsZero() {
		l.tokens = min(max(1, l.rate), l.tokens+l.rate*now.Sub(l.last).Seconds())
	}
	l.last = now
	if l.tokens < 1 {
		return false
	}
	l.tokens--
	return true
}
