package apicore

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/ingest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
)

// PROOF: who may do what, 2.
// What does not say which role it needs is closed, to everybody and also where no one has to log in: an operation, and
// a route that is none.
func TestARouteWithoutARoleIsClosed(t *testing.T) {
	t.Parallel()
	mux := NewRouteMux()
	v1 := humago.NewWithPrefix(mux, Prefix, huma.DefaultConfig("a test", "1"))
	s := &Core{Log: zap.NewNop(), mux: mux, heavy: access.NewSlots(1, 1), broad: access.NewSlots(1, 1)}
	touched := false
	touch := func() { touched = true }
	for _, op := range []huma.Operation{
		{OperationID: "new", Method: http.MethodGet, Path: "/new"},
		{OperationID: "new-too", Method: http.MethodPost, Path: "/new", Metadata: map[string]any{metaRoute: "admin"}},
		ByOperator(huma.Operation{OperationID: "hidden", Method: http.MethodPost, Path: "/hidden", Hidden: true}),
	} {
		Register(s, v1, op, func(context.Context, *struct{}) (string, error) { touch(); return "", nil })
	}
	mux.HandleFunc("GET /debug", func(http.ResponseWriter, *http.Request) { touch() })
	mux.Assign(v1.OpenAPI())
	for _, asked := range []string{
		"GET /api/v1/new", "POST /api/v1/new", "POST /api/v1/hidden", "GET /debug", "HEAD /debug",
	} {
		method, path, _ := strings.Cut(asked, " ")
		answer := httptest.NewRecorder()
		s.authorized(answer, httptest.NewRequest(method, path, nil))
		if answer.Code != http.StatusForbidden || touched {
			t.Errorf("%s: %d %s; want 403", asked, answer.Code, answer.Body)
		}
	}
}

// To add an operation takes a Register: it is served, described, and open to the role that it says. The client has a
// method for it once that is generated, and its command is a struct.
func TestAnOperationIsOneRegister(t *testing.T) {
	t.Parallel()
	mux := NewRouteMux()
	v1 := humago.NewWithPrefix(mux, Prefix, huma.DefaultConfig("a test", "1"))
	s := &Core{Log: zap.NewNop(), mux: mux, config: Config{QueryTimeout: time.Minute}}
	Register(s, v1, Post("fake", "/fakes", "Make a fake", "It is none."),
		func(context.Context, *struct{}) (string, error) { return "made", nil })
	mux.Assign(v1.OpenAPI())
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, Prefix+"/fakes", nil))
	if answer.Code != http.StatusOK || !strings.Contains(answer.Body.String(), "made") {
		t.Errorf("it is answered %d %s", answer.Code, answer.Body)
	}
	testenv.Same(t, mux.routes["POST "+Prefix+"/fakes"].Role, access.Operator, "it is open to")
	if op := v1.OpenAPI().Paths["/fakes"].Post; op.Summary != "Make a fake" || op.Description != "It is none." {
		t.Errorf("it is described as %+v", op)
	}
}

// What is said of an answer after it has begun, as huma does when the caller has gone, is not a mistake for the log.
func TestAnAnswerBeginsOnce(t *testing.T) {
	t.Parallel()
	s := &Core{Silence: time.Minute}
	core, logged := observer.New(zap.DebugLevel)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, _ := s.timed(w, r)
		answer.WriteHeader(http.StatusEarlyHints)
		answer.WriteHeader(http.StatusAccepted)
		answer.WriteHeader(http.StatusTeapot)
		testenv.Same(t, answer.status, http.StatusAccepted, "it is noted as")
	}))
	server.Config.ErrorLog = zap.NewStdLog(zap.New(core))
	server.Start()
	code, _ := testenv.Get(t, server.URL)
	server.Close()
	if code != http.StatusAccepted || logged.Len() > 0 {
		t.Errorf("%d; logged: %v", code, logged.All())
	}
}

// Who is sent away because there is too much is told when to come back, whatever there was too much of.
func TestProblemsThatPassSayWhenToAskAgain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err    error
		status int
		again  bool
	}{
		"operations": {fmt.Errorf("add: %w", &ingest.OverloadedError{}), http.StatusTooManyRequests, true},
		"sources":    {fmt.Errorf("add: %w", &ingest.EnrichError{Err: io.EOF}), http.StatusServiceUnavailable, true},
		"streams":    {TooMany("many streams"), http.StatusTooManyRequests, true},
		"trackers": {&trackerclient.Error{Code: trackerclient.CodeBusy, Message: "busy"},
			http.StatusServiceUnavailable, true},
		"requests":  {&access.BusyError{}, http.StatusTooManyRequests, true},
		"rows":      {fmt.Errorf("pause: %w", &pgconn.PgError{Code: "55P03"}), http.StatusServiceUnavailable, true},
		"conflicts": {fmt.Errorf("pause: %w", &pgconn.PgError{Code: "40001"}), http.StatusServiceUnavailable, true},
		"writes":    {fmt.Errorf("pause: %w", &pgconn.PgError{Code: "25006"}), http.StatusServiceUnavailable, true},
		"a restart": {fmt.Errorf("pause: %w", &pgconn.PgError{Code: "57P01"}), http.StatusServiceUnavailable, true},
		"a cut":     {fmt.Errorf("pause: %w", io.ErrUnexpectedEOF), http.StatusServiceUnavailable, true},
		"slowness":  {&database.SlowError{For: "a claim"}, http.StatusServiceUnavailable, true},
		"a fault":   {&pgconn.PgError{Code: "42703"}, http.StatusInternalServerError, false},
		"a file":    {&fs.PathError{Op: "open", Path: "spool", Err: syscall.ENOTDIR}, http.StatusInternalServerError, false},
		"nothing":   {workqueue.ErrNotFound, http.StatusNotFound, false},
		"input":     {BadInput("that is wrong"), http.StatusUnprocessableEntity, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mux := http.NewServeMux()
			s := &Core{Log: zap.NewNop(), config: Config{QueryTimeout: time.Minute}}
			api := humago.New(mux, huma.DefaultConfig("a test", "1"))
			Register(s, api, huma.Operation{OperationID: "ask", Method: http.MethodPost, Path: "/ask"},
				func(context.Context, *struct{}) (string, error) { return "", tc.err })
			answer := httptest.NewRecorder()
			mux.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/ask", nil))
			if again := answer.Header().Get("Retry-After"); answer.Code != tc.status || (again != "") != tc.again {
				t.Errorf("%d %s, Retry-After %q", answer.Code, answer.Body, again)
			}
			testenv.Same(t, answer.Header().Get("Content-Type"), ProblemType, "the answer")
		})
	}
}
