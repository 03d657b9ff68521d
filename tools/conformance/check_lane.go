package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

const (
	// laneChunks wait for the service while it is called, each of which takes it laneChunkTakes.
	laneChunks     = 20
	laneChunkTakes = 300 * time.Millisecond
)

func laneChecks() []check {
	const section = "The lane of calls"
	return []check{
		{"lane-true", `who says "lane":true answers what comes by tranche.work.<endpoint>+, in either mode`, section, 0,
			checkLaneTrue},
		{"lane", `calls have a lane, said by "lane":true, and a call is answered before chunks that wait`, section,
			needContract, checkLane},
	}
}

// checkLaneTrue has nothing against a service without a lane: callers do not use one then.
func checkLaneTrue(ctx context.Context, n *node) error {
	if said, err := n.openLane(ctx); err != nil || !said {
		return err
	}
	batch := n.sample(2)
	for _, r := range []*request{n.callRequest(n.sample(1)), batch} {
		if err := n.askOn(ctx, n.laneSubject(), r); err != nil {
			return err
		}
		a, err := n.answer(ctx, r, 0)
		if err != nil {
			return err
		}
		if err := a.exactly(r); err != nil {
			return err
		}
	}
	return n.expectSettled(ctx, batch, ackDone)
}

// checkLane calls while chunks wait.
func checkLane(ctx context.Context, n *node) error {
	said, err := n.openLane(ctx)
	if err != nil {
		return err
	}
	if !said {
		return differs(`"lane":true on tranche.status.`+n.config.Endpoint, "none")
	}
	var chunks []*request
	for range laneChunks {
		r := slowly(laneChunkTakes)
		if err := n.ask(ctx, r); err != nil {
			return err
		}
		chunks = append(chunks, r)
	}
	if err := n.delivered(ctx, chunks[0]); err != nil {
		return err
	}
	call := n.callRequest(orders(order{"do": "hello"}))
	if err := n.askOn(ctx, n.laneSubject(), call); err != nil {
		return err
	}
	done := 0
	err = n.journal.until(ctx, func() bool {
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
		return differs(fmt.Sprintf("a call answered before %d chunks of %s each, which came first", laneChunks,
			laneChunkTakes), "%d of them were answered before", done)
	}
	return nil
}

// callRequest makes a request one that somebody waits for.
func (n *node) callRequest(r *request) *request {
	r.header.Set(wire.HeaderMode, "single")
	r.header.Set(wire.HeaderReplyTo, fmt.Sprintf("tranche.call.%s.%s.%s", caller, uuid.NewString(), n.config.Endpoint))
	return r
}

func (n *node) laneSubject() string { return wire.WorkSubject(wire.LaneOf(n.config.Endpoint)) }

// openLane makes the consumer of the lane, as nodes do, of a service that has the member, and waits until it reads it.
// said is false of one that has none.
func (n *node) openLane(ctx context.Context) (said bool, err error) {
	if said, _ := n.laneStatus(ctx); !said {
		return false, nil
	}
	if err := stream.EnsureLane(ctx, n.js, n.config.Endpoint); err != nil {
		return true, err
	}
	return true, n.poll(ctx, 2*patience, func() (bool, error) {
		_, reads := n.laneStatus(ctx)
		return reads, nil
	}, `"lane":true, once its consumer is there`, "false")
}

// laneStatus is what the service says of its lane: whether it has the member, and the member.
func (n *node) laneStatus(ctx context.Context) (said, reads bool) {
	ctx, cancel := n.config.lasting(ctx, time.Second)
	defer cancel()
	msg, err := n.nc.RequestWithContext(ctx, "tranche.status."+n.config.Endpoint, nil)
	if err != nil {
		return false, false // who is not listed has another check
	}
	var status struct{ Lane *bool }
	_ = json.Unmarshal(msg.Data, &status) // likewise
	return status.Lane != nil, status.Lane != nil && *status.Lane
}
