package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

func discoveryChecks() []check {
	return []check{
		{"discovery", "$SRV.INFO and $SRV.STATS list the service and its endpoint", "Discovery", 0, checkDiscovery},
	}
}

func checkDiscovery(ctx context.Context, n *node) error {
	var info micro.Info
	err := n.discover(ctx, micro.InfoVerb, func(data []byte) bool {
		info = micro.Info{}
		if json.Unmarshal(data, &info) != nil || info.Metadata["tranche"] != "1" {
			return false
		}
		for _, e := range info.Endpoints {
			if e.Name == n.config.Endpoint && e.Subject == "tranche.status."+n.config.Endpoint {
				return true
			}
		}
		return false
	}, fmt.Sprintf(`an answer to $SRV.INFO with metadata tranche "1" and endpoint %s on tranche.status.%[1]s`,
		n.config.Endpoint))
	if err != nil {
		return err
	}
	err = n.discover(ctx, micro.StatsVerb, func(data []byte) bool {
		var stats micro.Stats
		if json.Unmarshal(data, &stats) != nil || stats.ID != info.ID {
			return false
		}
		for _, e := range stats.Endpoints {
			if e.Name == n.config.Endpoint && missingFigures(e.Data) == "" {
				return true
			}
		}
		return false
	}, `an answer to $SRV.STATS whose "data" of the endpoint has chunks, processed, errors, in_flight and avg_per_item`)
	if err != nil {
		return err
	}
	return n.checkStatus(ctx)
}

// checkStatus asks for the same figures on the endpoint's own subject.
func (n *node) checkStatus(ctx context.Context) error {
	subject := "tranche.status." + n.config.Endpoint
	ctx, cancel := n.config.lasting(ctx, patience)
	defer cancel()
	msg, err := n.nc.RequestWithContext(ctx, subject, nil)
	if err != nil {
		return differs("an answer on "+subject, "%v", err)
	}
	if missing := missingFigures(msg.Data); missing != "" {
		return differs("the figures of STATS on "+subject, "%q, without %s", brief(string(msg.Data)), missing)
	}
	return nil
}

// missingFigures names the figures that are not there as whole numbers.
func missingFigures(data []byte) string {
	var figures map[string]json.RawMessage
	_ = json.Unmarshal(data, &figures) // without an object all of them are missing
	var missing []string
	for _, name := range []string{"chunks", "processed", "errors", "in_flight", "avg_per_item"} {
		var value int64
		if json.Unmarshal(figures[name], &value) != nil {
			missing = append(missing, name)
		}
	}
	return strings.Join(missing, ", ")
}

// discover asks all services and returns when one answer will do.
func (n *node) discover(ctx context.Context, verb micro.Verb, ok func([]byte) bool, expected string) error {
	subject, err := micro.ControlSubject(verb, "", "")
	if err != nil {
		return fmt.Errorf("discover: %w", err)
	}
	inbox := n.nc.NewInbox()
	answers, err := n.nc.SubscribeSync(inbox)
	if err != nil {
		return fmt.Errorf("discover: %w", err)
	}
	defer func() { _ = answers.Unsubscribe() }()
	if err := n.nc.PublishRequest(subject, inbox, nil); err != nil {
		return fmt.Errorf("discover: %w", err)
	}
	got := "no answer"
	ctx, cancel := n.config.lasting(ctx, n.patience())
	defer cancel()
	for ctx.Err() == nil {
		msg, err := answers.NextMsgWithContext(ctx)
		if ctx.Err() != nil || errors.Is(err, nats.ErrNoResponders) {
			break
		}
		if err != nil {
			return fmt.Errorf("discover: %w", err)
		}
		if ok(msg.Data) {
			return nil
		}
		got = brief(string(msg.Data))
	}
	return differs(expected, "%s", got)
}
