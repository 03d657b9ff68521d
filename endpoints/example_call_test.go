package endpoints_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// statementOf is an HTTP handler that asks a service for one statement and waits.
func statementOf(nc *nats.Conn) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		out, err := endpoints.Call[Account, Statement](ctx, nc, "statement", r.PathValue("id"), Account{Balance: 120},
			endpoints.Direct(), endpoints.CallerName("web"), endpoints.CallOrigin(r.RemoteAddr))
		var failed *wire.SlotError
		switch {
		case errors.As(err, &failed) && !failed.Retry:
			http.Error(w, failed.Message, http.StatusUnprocessableEntity)
		case err != nil: // no service listens, or is in time: it may pass
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		default:
			_ = json.NewEncoder(w).Encode(out) // a client that has gone needs no error
		}
	}
}

func ExampleCall() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, stop := node(ctx)
	defer stop()
	nc, err := endpoints.Connect()
	must(err)
	defer nc.Close()
	web := http.NewServeMux()
	web.Handle("/statements/{id}", statementOf(nc))
	get := func() *httptest.ResponseRecorder {
		response := httptest.NewRecorder()
		web.ServeHTTP(response, httptest.NewRequestWithContext(ctx, http.MethodGet, "/statements/CUST-18", nil))
		return response
	}
	fmt.Println("without a service:", get().Code)

	serving, end := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- serve(serving) }()
	answer := get()
	for ; answer.Code == http.StatusServiceUnavailable && ctx.Err() == nil; answer = get() {
		<-time.After(10 * time.Millisecond) // until it listens
	}
	fmt.Print(answer.Code, " ", answer.Body)
	end()
	must(<-done)
	// Output:
	// without a service: 503
	// 200 {"closing":120,"for":"CUST-18"}
}
