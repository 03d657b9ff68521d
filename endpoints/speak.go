package endpoints

import (
	"fmt"
	"os"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// speaker is the log of those who give none: what happens to the service, a line each on standard error.
func speaker() *zap.Logger {
	config := zap.NewProductionEncoderConfig()
	config.EncodeTime = zapcore.RFC3339TimeEncoder
	config.EncodeLevel = zapcore.CapitalLevelEncoder
	config.ConsoleSeparator = " "
	return zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(config), zapcore.Lock(os.Stderr), zapcore.InfoLevel))
}

// NotReadyError says which endpoint of a service takes no requests, and why.
type NotReadyError struct {
	Endpoint string
	State    wire.State // empty: the service does not run
	Reason   string
}

// Error says it in a line.
func (e *NotReadyError) Error() string {
	if e.State == "" {
		return fmt.Sprintf("endpoint %s is not served yet", e.Endpoint)
	}
	text := fmt.Sprintf("endpoint %s is %s", e.Endpoint, e.State)
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

// Ready returns nil while every endpoint of the service listens, and a *NotReadyError otherwise: for the readiness probe
// of Kubernetes. A service that waits for NATS or for a node is not ready, and not ill: it needs no restart.
func (s *Service) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.endpoints {
		state, reason := e.work.life.state()
		if !s.running {
			state, reason = "", ""
		}
		if state != wire.StateListening {
			return &NotReadyError{e.name, state, reason}
		}
	}
	if len(s.endpoints) == 0 {
		return &NotReadyError{Endpoint: "none"}
	}
	return nil
}
