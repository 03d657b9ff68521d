package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// Config says what to check. Endpoint is required, and one of URL and Command.
type Config struct {
	Endpoint string
	// URL of the NATS server that the service is connected to; who the suite is there, the environment says, as
	// [endpoints.Connect] reads it. When it is empty the suite runs one of its own.
	URL string
	// Command starts the service, with NATS_URL in its environment, on the suite's own server.
	Command []string
	// Items are payloads that the endpoint understands, by default {}. They are used in turn. The conformance endpoint
	// is sent orders of the contract instead.
	Items []json.RawMessage
	// Only are the names of the checks to run; empty means all.
	Only []string
	// Record, if set, is written what suite and service say to each other, as JSON lines.
	Record io.Writer
	// Each, if set, is called with every result as soon as there is one. Its error ends the Run.
	Each func(Result) error

	service starter // of tests, instead of Command
	lasting lasting // of tests, instead of context.WithTimeout
}

func (c Config) withDefaults() (Config, error) {
	if err := wire.ValidateName(c.Endpoint); err != nil {
		return c, err
	}
	if c.service == nil && len(c.Command) > 0 {
		c.service = commandStarter(c.Command)
	}
	if (c.URL == "") == (c.service == nil) {
		return c, errors.New("give either the command that starts the service (-- COMMAND ARGS…), which then gets a NATS " +
			"server of its own, or the NATS server that it is connected to (--nats URL)")
	}
	if len(c.Items) == 0 {
		c.Items = []json.RawMessage{json.RawMessage(`{}`)}
	}
	for n, item := range c.Items {
		if !json.Valid(item) {
			return c, fmt.Errorf("item %d is not JSON: %.60q", n+1, item)
		}
	}
	names := Names()
	for _, name := range c.Only {
		if !slices.Contains(names, name) {
			return c, fmt.Errorf("there is no check %q; --list names them", name)
		}
	}
	if c.lasting == nil {
		c.lasting = context.WithTimeout
	}
	if c.Each == nil {
		c.Each = func(Result) error { return nil }
	}
	return c, nil
}
