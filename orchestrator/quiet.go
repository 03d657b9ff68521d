package orchestrator

import (
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tranchehq/tranche/orchestrator/core"
)

// Quiet removes items' values from logs above the level debug: PostgreSQL's errors quote them. Their codes stay.
func Quiet() zap.Option {
	return zap.WrapCore(func(to zapcore.Core) zapcore.Core { return quietCore{to} })
}

type quietCore struct{ zapcore.Core }

func (c quietCore) With(fields []zapcore.Field) zapcore.Core {
	return quietCore{c.Core.With(c.quiet(fields))}
}

func (c quietCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

func (c quietCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	if inner := c.Core.Check(entry, nil); inner != nil { // samplers, and levels of single outputs
		inner.Write(c.quiet(fields)...)
	}
	return nil
}

func (c quietCore) quiet(fields []zapcore.Field) []zapcore.Field {
	if c.Enabled(zapcore.DebugLevel) {
		return fields
	}
	for i, f := range fields {
		err, ok := f.Interface.(error)
		if !ok || f.Type != zapcore.ErrorType {
			continue
		}
		if text := core.WithoutValues(err); text != err.Error() { // other errors keep their type, for what watches the log
			fields = slices.Clone(fields)
			fields[i] = zap.String(f.Key, text)
		}
	}
	return fields
}
