package kernel

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/fanout"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/producers"
	"github.com/tranchehq/tranche/workqueue"
)

// Who is sent away because there is too much is told when to come back, whatever there was too much of.
func TestProblemsThatPassSayWhenToAskAgain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err    error
		status int
		again  bool
	}{
		"operations": {fmt.Errorf("add: %w", &producers.OverloadedError{}), http.StatusTooManyRequests, true},
		"streams":    {TooMany("many streams"), http.StatusTooManyRequests, true},
		"trackers":   {&fanout.Error{Code: fanout.CodeBusy, Message: "busy"}, http.StatusServiceUnavailable, true},
		"requests":   {&access.BusyError{}, http.StatusTooManyRequests, true},
		"nothing":    {workqueue.ErrNotFound, http.StatusNotFound, false},
		"input":      {BadInput("that is wrong"), http.StatusUnprocessableEntity, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mux := http.NewServeMux()
			s := &Kernel{Log: zap.NewNop(), config: Config{LookTimeout: time.Minute}}
			api := humago.New(mux, huma.DefaultConfig("a test", "1"))
			Register(s, api, huma.Operation{OperationID: "ask", Method: http.MethodPost, Path: "/ask"},
				func(context.Context, *struct{}) (string, error) { return "", tc.err })
			answer := httptest.NewRecorder()
			mux.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/ask", nil))
			if again := answer.Header().Get("Retry-After"); answer.Code != tc.status || (again != "") != tc.again {
				t.Errorf("%d %s, Retry-After %q", answer.Code, answer.Body, again)
			}
			if kind := answer.Header().Get("Content-Type"); kind != ProblemType {
				t.Errorf("the answer is %s", kind)
			}
		})
	}
}
