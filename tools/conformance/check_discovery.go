package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

func checkDiscovery(ctx context.Context, n *node) {
	var info micro.Info
	n.discover(ctx, micro.InfoVerb, func(data []byte) bool {
		info = micro.Info{}
		if json.Unmarshal(data, &info) != nil || info.Metadata["tranche"] != "1" {
			return false
		}
		return slices.ContainsFunc(info.Endpoints, func(e micro.EndpointInfo) bool {
			return e.Name == n.config.Endpoint && e.Subject == "tranche.status."+n.config.Endpoint
		})
	}, fmt.Sprintf(`an answer to $SRV.INFO with metadata tranche "1" and endpoint %s on tranche.status.%[1]s`,
		n.config.Endpoint))
	n.discover(ctx, micro.StatsVerb, func(data []byte) bool {
		var stats micro.Stats
		if json.Unmarshal(data, &stats) != nil || stats.ID != info.ID {
			return false
		}
		return slices.ContainsFunc(stats.Endpoints, func(e *micro.EndpointStats) bool {
			return e.Name == n.config.Endpoint && missingFigures(e.Data) == ""
		})
	}, `an answer to $SRV.STATS whose "data" of the endpoint has chunks, processed, errors, in_flight and avg_per_item`)
	// The same figures on the endpoint's own subject.
	subject := "tranche.status." + n.config.Endpoint
	ctx, cancel := n.config.lasting(ctx, patience)
	defer cancel()
	msg, err := n.nc.RequestWithContext(ctx, subject, nil)
	if err != nil {
		fail("an answer on "+subject, "%v", err)
	}
	if missing := missingFigures(msg.Data); missing != "" {
		fail("the figures of STATS on "+subject, "%q, without %s", brief(string(msg.Data)), missing)
	}
}

// missingFigures names the figures that are not integers.
func missingFigures(data []byte) string {
	var figures map[string]json.RawMessage
	_ = json.Unmarshal(data, &figures) // without an object all are missing
	var missing []string
	for _, name := range []string{"chunks", "processed", "errors", "in_flight", "avg_per_item"} {
		var value int64
		if json.Unmarshal(figures[name], &value) != nil {
			missing = append(missing, name)
		}
	}
	return strings.Join(missing, ", ")
}

// discover queries all services and returns once an answer is ok.
func (n *node) discover(ctx context.Context, verb micro.Verb, ok func([]byte) bool, expected string) {
	inbox := n.nc.NewInbox()
	answers := must(n.nc.SubscribeSync(inbox))
	defer func() { _ = answers.Unsubscribe() }()
	stop(n.nc.PublishRequest(must(micro.ControlSubject(verb, "", "")), inbox, nil))
	got := "no answer"
	ctx, cancel := n.config.lasting(ctx, n.patience())
	defer cancel()
	for ctx.Err() == nil {
		msg, err := answers.NextMsgWithContext(ctx)
		if ctx.Err() != nil || errors.Is(err, nats.ErrNoResponders) {
			break
		}
		if stop(err); ok(msg.Data) {
			return
		}
		got = brief(string(msg.Data))
	}
	fail(expected, "%s", got)
}

const (
	// laneChunks wait for the service during the call; each takes it laneChunkTakes.
	laneChunks     = 20
	laneChunkTakes = 300 * time.Millisecond
)

// checkLaneTrue accepts services without a lane: callers then do not use one.
func checkLaneTrue(ctx context.Context, n *node) {
	if !n.openLane(ctx) {
		return
	}
	batch := n.sample(2)
	for _, r := range []*request{n.callRequest(n.sample(1)), batch} {
		n.askOn(ctx, n.laneSubject(), r)
		n.awaitWhole(ctx, r)
	}
	n.expectSettled(ctx, batch, ackDone)
}

// checkLane calls while chunks wait.
func checkLane(ctx context.Context, n *node) {
	if !n.openLane(ctx) {
		fail(`"lane":true on tranche.status.`+n.config.Endpoint, "none")
	}
	var chunks []*request
	for range laneChunks {
		r := slowly(laneChunkTakes)
		n.ask(ctx, r)
		chunks = append(chunks, r)
	}
	n.delivered(ctx, chunks[0])
	call := n.callRequest(orders(order{"do": "hello"}))
	n.askOn(ctx, n.laneSubject(), call)
	done := 0
	err := n.journal.until(ctx, func() bool {
		done = 0
		for _, r := range chunks {
			if a := (answer{n.journal.of(r.slice())}); a.final() >= 0 {
				done++
			}
		}
		called := answer{n.journal.of(call.slice())}
		return done == laneChunks || called.final() >= 0
	})
	if done > laneChunks/2 || err != nil {
		fail(fmt.Sprintf("a call answered before %d chunks of %s each, which came first", laneChunks,
			laneChunkTakes), "%d of them were answered before", done)
	}
}

func (n *node) callRequest(r *request) *request {
	r.header.Set(wire.HeaderMode, "single")
	r.header.Set(wire.HeaderReplyTo, fmt.Sprintf("tranche.call.%s.%s.%s", caller, uuid.NewString(), n.config.Endpoint))
	return r
}

func (n *node) laneSubject() string { return wire.WorkSubject(wire.LaneOf(n.config.Endpoint)) }

// openLane creates the lane's consumer, if the service reports a lane (said), and waits until it reads.
func (n *node) openLane(ctx context.Context) (said bool) {
	if said, _ := n.laneStatus(ctx); !said {
		return false
	}
	stop(stream.EnsureLane(ctx, n.js, n.config.Endpoint))
	n.poll(ctx, 2*patience, func() bool {
		_, reads := n.laneStatus(ctx)
		return reads
	}, `"lane":true, once its consumer is there`, "false")
	return true
}

// laneStatus returns whether the service reports "lane", and its value.
func (n *node) laneStatus(ctx context.Context) (said, reads bool) {
	ctx, cancel := n.config.lasting(ctx, time.Second)
	defer cancel()
	msg, err := n.nc.RequestWithContext(ctx, "tranche.status."+n.config.Endpoint, nil)
	if err != nil {
		return false, false // another check covers discovery
	}
	var status struct{ Lane *bool }
	_ = json.Unmarshal(msg.Data, &status) // see above
	return status.Lane != nil, status.Lane != nil && *status.Lane
}
