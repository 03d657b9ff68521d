package startup

import (
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tranchehq/tranche/internal/api"
)

// Troubles remembers the last error that was logged, for those who ask why nothing goes on.
type Troubles struct {
	mu   sync.Mutex
	last api.Trouble
}

// Watch makes a logger tell the troubles too.
func (t *Troubles) Watch() zap.Option {
	return zap.WrapCore(func(to zapcore.Core) zapcore.Core { return zapcore.NewTee(to, &troubleCore{of: t}) })
}

// Note remembers one.
func (t *Troubles) Note(what string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = api.Trouble{What: what, Err: err, At: time.Now()}
}

// Last is the last trouble, if there was one.
func (t *Troubles) Last() (api.Trouble, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last, t.last.Err != nil
}

// troubleCore is a log that keeps only the last error.
type troubleCore struct{ of *Troubles }

// Enabled implements zapcore.Core.
func (*troubleCore) Enabled(level zapcore.Level) bool { return level >= zapcore.WarnLevel }

// With implements zapcore.Core.
func (c *troubleCore) With([]zapcore.Field) zapcore.Core { return c }

// Check implements zapcore.Core.
func (c *troubleCore) Check(entry zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return to.AddCore(entry, c)
	}
	return to
}

// Write implements zapcore.Core.
func (c *troubleCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	for i := range fields {
		err, ok := fields[i].Interface.(error)
		if !ok || fields[i].Type != zapcore.ErrorType {
			continue
		}
		c.of.Note(entry.Message, err)
	}
	return nil
}

// Sync implements zapcore.Core.
func (*troubleCore) Sync() error { return nil }
