package runs

import (
	"context"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/api/kernel"
)

// unheardAsk is an endpoint that a flow asks and on which nobody listens.
type unheardAsk struct {
	endpoint string
	requests uint64 // that wait for it
}

// maxUnheard bounds the endpoints that are looked into.
const maxUnheard = 20

// lookForUnheard finds requests of flows to endpoints on which nobody listens. The last request to each such endpoint
// tells who asked. What cannot be looked at now is left out: it only adds to an explanation.
func (s *Routes) lookForUnheard(
	ctx context.Context, flows []string, listeners map[string][]wire.Listener,
) map[string][]unheardAsk {
	found := map[string][]unheardAsk{}
	ctx, cancel := context.WithTimeout(ctx, kernel.ListenWait)
	defer cancel()
	js, err := jetstream.New(s.NC)
	if err != nil {
		return found
	}
	stream, err := js.Stream(ctx, wire.StreamWork)
	if err != nil {
		return found
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(wire.WorkSubject("*")))
	if err != nil {
		return found
	}
	looked := 0
	for subject, requests := range info.State.Subjects {
		name, _ := wire.EndpointOf(strings.TrimPrefix(subject, wire.WorkSubject("")))
		if len(listeners[name]) > 0 || slices.Contains(flows, name) {
			continue
		}
		if looked++; looked > maxUnheard {
			break
		}
		msg, err := stream.GetLastMsgForSubject(ctx, subject)
		if err != nil {
			continue // answered meanwhile
		}
		for part := range strings.SplitSeq(msg.Header.Get(wire.HeaderStack), ",") {
			flow, _, _ := strings.Cut(part, ":")
			if slices.Contains(flows, flow) {
				found[flow] = append(found[flow], unheardAsk{name, requests})
				break
			}
		}
	}
	for _, asks := range found {
		slices.SortFunc(asks, func(a, b unheardAsk) int { return strings.Compare(a.endpoint, b.endpoint) })
	}
	return found
}
