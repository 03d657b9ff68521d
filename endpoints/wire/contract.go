package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
)

// Contract is what an endpoint says of its items: a JSON Schema of what it reads, and one of what it answers. Each is
// nil where the service does not say.
type Contract struct {
	In  json.RawMessage `json:"in,omitempty"`
	Out json.RawMessage `json:"out,omitempty"`
}

// MaxSchema is how many bytes each schema of a Contract may have. Longer ones are taken as not said.
const MaxSchema = 16 << 10

// AskContract asks one of the instances that listen on an endpoint for its contract. It is empty when none listens,
// none answers before ctx ends, or the service does not say.
func AskContract(ctx context.Context, nc *nats.Conn, endpoint string) (Contract, error) {
	msg, err := nc.RequestWithContext(ctx, StatusSubject(endpoint), nil)
	switch {
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, context.DeadlineExceeded):
		return Contract{}, nil
	case err != nil:
		return Contract{}, fmt.Errorf("ask endpoint %s for its contract: %w", endpoint, err)
	}
	var status struct {
		Contract Contract `json:"contract"`
	}
	if json.Unmarshal(msg.Data, &status) != nil {
		return Contract{}, nil
	}
	c := status.Contract
	if len(c.In) > MaxSchema {
		c.In = nil
	}
	if len(c.Out) > MaxSchema {
		c.Out = nil
	}
	return c, nil
}
