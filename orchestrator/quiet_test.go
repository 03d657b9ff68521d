package orchestrator_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
)

// PROOF: who may do what, 17. What PostgreSQL quotes in an error is in no log above the level debug.
func TestErrorsOfPostgreSQLAreNotLogged(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("record: %w", &pgconn.PgError{Severity: "ERROR", Code: "22P02",
		Message: `invalid input syntax for type uuid: "KEY"`})
	for level, quoted := range map[zapcore.Level]bool{zap.InfoLevel: false, zap.DebugLevel: true} {
		core, seen := observer.New(level)
		zap.New(core).WithOptions(orchestrator.Quiet()).With(zap.NamedError("before", err)).Warn("it failed", zap.Error(err))
		said := fmt.Sprint(seen.All()[0].ContextMap())
		testenv.Same(t, strings.Count(said, "KEY"), map[bool]int{true: 2}[quoted], "keys at %s in %s", level, said)
		testenv.Same(t, strings.Count(said, "22P02"), 2, "codes at %s in %s", level, said)
	}
}
