package kernel

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// answer is an answer with a JSON body.
type answer[T any] struct{ Body T }

// Register adds an operation whose errors are the package's. What only looks has to be done in time, and who asks for a
// change, as an Actor that the input embeds, has a name that can be kept.
func Register[In, Out any](
	k *Kernel, api huma.API, op huma.Operation, handle func(ctx context.Context, in *In) (Out, error),
) {
	RegisterWithin(k, api, op, k.config.LookTimeout, handle)
}

// RegisterWithin is Register with a bound of its own for what only looks.
func RegisterWithin[In, Out any](
	k *Kernel, api huma.API, op huma.Operation, limit time.Duration,
	handle func(ctx context.Context, in *In) (Out, error),
) {
	op.BodyReadTimeout = -1 // timedBody sees to it
	huma.Register(api, op, func(ctx context.Context, in *In) (*answer[Out], error) {
		if op.Method == http.MethodGet {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, limit, errTooSlow)
			defer cancel()
		}
		var out Out
		var err error
		if who, ok := any(in).(interface{ Check() error }); ok {
			err = who.Check()
		}
		if err == nil {
			out, err = handle(ctx, in)
		}
		if err != nil {
			return nil, k.Failure(ctx, err)
		}
		return &answer[Out]{Body: out}, nil
	})
}

// Get is an operation that only looks: every viewer may do it.
func Get(id, path, summary string) huma.Operation {
	return byViewer(huma.Operation{OperationID: id, Method: http.MethodGet, Path: path, Summary: summary})
}
