package apicore

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/testing/testenv"
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
