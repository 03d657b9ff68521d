package serve

import (
	"os"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// Fields returns the log fields of a chunk: run, slice, and for a flow's question the node's slice and the stack.
func Fields(m wire.Meta) []zap.Field {
	fields := []zap.Field{zap.Stringer("run", m.Run), zap.Stringer("slice", m.Slice)}
	if m.Root != m.Slice {
		fields = append(fields, zap.Stringer("root", m.Root))
	}
	if m.Stack != "" {
		fields = append(fields, zap.String("stack", string(m.Stack)))
	}
	return fields
}

// maxLogged bounds the bytes logged of an unchecked header.
const maxLogged = 256

// OfHeader is Fields for unparsed headers.
func OfHeader(h nats.Header) []zap.Field {
	var fields []zap.Field
	for _, f := range []struct{ name, header string }{
		{"run", wire.HeaderRun}, {"slice", wire.HeaderSlice}, {"root", wire.HeaderRoot}, {"stack", wire.HeaderStack},
	} {
		if value := h.Get(f.header); value != "" {
			fields = append(fields, zap.String(f.name, wire.OneLine(wire.Cut(value, maxLogged))))
		}
	}
	return fields
}

// Remedies for a server that refuses this user or is unreachable.
const (
	RefusedRemedy = "for the private server of `tranche serve`, set NATS_URL=$(cat DIR/nats-url), where DIR is its " +
		"--data-dir; for another one, check NATS_URL and NATS_CREDS, NATS_NKEY or NATS_USER"
	AwayRemedy = "start `tranche serve`, or set NATS_URL to a server that runs; for the private server of " +
		"`tranche serve`, NATS_URL=$(cat DIR/nats-url), where DIR is its --data-dir"
)

// Speaker returns the default logger: one line per event on standard error.
func Speaker() *zap.Logger {
	config := zap.NewProductionEncoderConfig()
	config.EncodeTime = zapcore.RFC3339TimeEncoder
	config.EncodeLevel = zapcore.CapitalLevelEncoder
	config.ConsoleSeparator = " "
	return zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(config), zapcore.Lock(os.Stderr), zapcore.InfoLevel))
}
