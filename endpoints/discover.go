package endpoints

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// Listener is one instance of a service that listens on one endpoint.
type Listener struct {
	Endpoint, Service, Version, Instance string
	Host                                 string // as the service gives it; may be empty
	Processed, Errors                    int64  // items since it started; Errors of those got an error slot
	AvgPerItem                           time.Duration
}

// maxListed bounds how many answers Discover takes.
const maxListed = 10_000

// Discover asks who listens, and returns what has been answered within wait, sorted by endpoint, service and instance.
// A service that is busy or far away may be missing. No listeners is not an error.
func Discover(ctx context.Context, nc *nats.Conn, wait time.Duration) ([]Listener, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	subject, err := micro.ControlSubject(micro.StatsVerb, "", "")
	if err != nil {
		return nil, fmt.Errorf("discover services: %w", err)
	}
	inbox := nc.NewInbox()
	answers, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, fmt.Errorf("discover services: %w", err)
	}
	defer func() { _ = answers.Unsubscribe() }()
	if err := nc.PublishRequest(subject, inbox, nil); err != nil {
		return nil, fmt.Errorf("discover services: %w", err)
	}
	var found []Listener
	for range maxListed {
		msg, err := answers.NextMsgWithContext(ctx)
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrNoResponders) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("discover services: %w", err)
		}
		found = append(found, listenersIn(msg.Data)...)
	}
	slices.SortFunc(found, func(a, b Listener) int {
		return cmp.Or(cmp.Compare(a.Endpoint, b.Endpoint), cmp.Compare(a.Service, b.Service),
			cmp.Compare(a.Instance, b.Instance))
	})
	return found, nil
}

// listenersIn reads one answer. Services of other kinds answer too, and anybody may answer anything: what is not ours
// is passed over.
func listenersIn(data []byte) []Listener {
	var answer micro.Stats
	if json.Unmarshal(data, &answer) != nil || answer.Metadata[metaProtocol] == "" {
		return nil
	}
	var found []Listener
	for _, e := range answer.Endpoints {
		var status endpointStatus
		if e == nil || ValidateName(e.Name) != nil || json.Unmarshal(e.Data, &status) != nil {
			continue
		}
		instance := cmp.Or(answer.Metadata[metaInstance], answer.ID)
		found = append(found, Listener{
			Endpoint: e.Name, Service: cut(answer.Name, maxServiceName), Version: cut(answer.Version, maxServiceName),
			Instance: cut(instance, maxServiceName), Host: cut(answer.Metadata[metaHost], maxServiceName),
			Processed: status.Processed, Errors: status.Errors, AvgPerItem: time.Duration(status.Average),
		})
	}
	return found
}
