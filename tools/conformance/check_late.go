package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/embedded"
)

const (
	// lateRequests are enough for many pulls of any service.
	lateRequests = 100
	// lateBytes is the size of each, at the least: a service that bounds its pulls by bytes shall meet that bound, too.
	lateBytes = 64 << 10
	// lateAckWait is so long that what a service has lost does not come again while it is looked for.
	lateAckWait = time.Minute
	replicas    = 3
	// electionPause is between two tries to make streams on servers that have just come together.
	electionPause = 100 * time.Millisecond
)

func lateChecks() []check {
	return []check{
		{"late", "messages that come after the end of their pull, as on replicated consumers, are taken", "Acknowledgement",
			needPrivate, checkLate},
	}
}

// checkLate starts the service once more, on three servers. There a pull that is bounded in bytes ends (409) before its
// messages come, which wait for the quorum. A service that does not bound its pulls is not told, and passes.
func checkLate(ctx context.Context, n *node) (err error) {
	dir, err := os.MkdirTemp("", "tranche-conformance-")
	if err != nil {
		return fmt.Errorf("make a directory for NATS: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cluster, err := embedded.StartNATSCluster(ctx, dir)
	if err != nil {
		return err
	}
	defer cluster.Stop()
	url := cluster.URLs()[0]
	other := &node{config: n.config, private: true, contract: n.contract, journal: newJournal()}
	disconnect, err := other.connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = disconnect() }()
	if err := other.makeReplicated(ctx); err != nil {
		return err
	}
	requests, err := other.askMany(ctx)
	if err != nil {
		return err
	}
	if other.service, err = n.config.service(url); err != nil {
		return err
	}
	defer stopService(other.service)
	return other.allAtOnce(ctx, requests)
}

// makeReplicated makes the streams and the consumer, as soon as the servers have agreed on who leads what.
func (n *node) makeReplicated(ctx context.Context) error {
	for {
		err := n.makeStreamsWith(ctx, stream.Config{Memory: true, Replicas: replicas}, lateAckWait)
		if err == nil || ctx.Err() != nil {
			return err
		}
		_ = backoff.Sleep(ctx, electionPause)
	}
}

// askMany publishes requests before there is a service, so that each of its pulls finds enough.
func (n *node) askMany(ctx context.Context) (requests []*request, err error) {
	for range lateRequests {
		r := n.sample(1)
		r.body = append(r.body, bytes.Repeat([]byte{' '}, lateBytes)...)
		if err := n.ask(ctx, r); err != nil {
			return nil, err
		}
		requests = append(requests, r)
	}
	return requests, nil
}

// allAtOnce waits until all requests are answered, as long as some are, and expects each to have been delivered once.
func (n *node) allAtOnce(ctx context.Context, requests []*request) error {
	const expected = "all requests answered at their first delivery, with three servers"
	answered := func() (count int) {
		for _, r := range requests {
			if len(n.journal.of(r.slice())) > 0 {
				count++
			}
		}
		return count
	}
	limit := startTimeout // for the first
	for count := 0; count < len(requests); {
		err := n.within(ctx, limit, func() bool { return answered() > count })
		n.journal.look(func() bool { count = answered(); return true })
		if err != nil {
			return differs(expected, "%d of %d answered, and no other in %s", count, len(requests), limit)
		}
		limit = patience
	}
	info, err := n.consumer(ctx)
	if err != nil {
		return err
	}
	if again := int(info.Delivered.Consumer) - len(requests); again > 0 {
		return differs(expected, "%d delivered again", again)
	}
	return nil
}
