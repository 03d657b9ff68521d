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
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// retryAfter is in how many seconds whoever asks too much may come back.
const retryAfter = 1

// shutdownTimeout is what requests under way are given at the end.
const shutdownTimeout = 5 * time.Second

const unknownAccount = "the bank has no such account"

// BranchesConfig sets the service up.
type BranchesConfig struct {
	Token string  // asked for as a bearer's; empty: everybody may ask
	Rate  float64 // customers a second; 0: no limit
}

type branches struct {
	db      *pgxpool.Pool
	ledger  *Ledger
	config  BranchesConfig
	limit   *limit
	refused atomic.Int64
}

// ServeBranches answers GET /customers/{account}/branch on the listener until ctx ends, one customer at a time, and
// closes the listener.
func ServeBranches(ctx context.Context, on net.Listener, db *pgxpool.Pool, config BranchesConfig) error {
	s := &branches{db: db, ledger: NewLedger(db), config: config, limit: newLimit(config.Rate)}
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

// selectBranch has a row for a customer, with nothing behind the number of a branch that does not exist.
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

// gapError says what the bank does not know.
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

// refusals says how many requests were turned away because they were too many.
func (s *branches) refusals(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]int64{"refused": s.refused.Load()})
}

// refuse says why in words: whoever asks is a program of somebody who reads them.
func refuse(w http.ResponseWriter, status int, reason string) { http.Error(w, reason, status) }

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // whoever asked has gone
}
