// Package logs is what services say on their logs: to whom, and of which request.
package logs

import (
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

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
