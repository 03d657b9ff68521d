package apicore

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/ingest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
)

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
