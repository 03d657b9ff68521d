package apicore

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

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
