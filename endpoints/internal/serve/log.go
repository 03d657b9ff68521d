package serve

import (
	"os"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// Fields is what every line of the log about a chunk says: the run and the slice, and for what a flow asks also the
// slice of the node that all is for, and the endpoints that wait.
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

// maxLogged bounds what a line of the log repeats of headers that have not been checked.
const maxLogged = 256

// OfHeader is logFields for headers that could not be read, or have not been.
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

// What to do about a server that refuses this user, or is not there.
const (
	RefusedRemedy = "for the private server of `tranche serve`, set NATS_URL=$(cat DIR/nats-url), where DIR is its " +
		"--data-dir; for another one, check NATS_URL and NATS_CREDS, NATS_NKEY or NATS_USER"
	AwayRemedy = "start `tranche serve`, or set NATS_URL to a server that runs; for the private server of " +
		"`tranche serve`, NATS_URL=$(cat DIR/nats-url), where DIR is its --data-dir"
)

// Speaker is the log of those who give none: what happens to the service, a line each on standard error.
func Speaker() *zap.Logger {
	config := zap.NewProductionEncoderConfig()
	config.EncodeTime = zapcore.RFC3339TimeEncoder
	config.EncodeLevel = zapcore.CapitalLevelEncoder
	config.ConsoleSeparator = " "
	return zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(config), zapcore.Lock(os.Stderr), zapcore.InfoLevel))
}
