package conformance

import (
	"context"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// withheld is how long the room in the reply stream is kept from a service.
const withheld = 600 * time.Millisecond

func settleChecks() []check {
	const section = "Acknowledgement"
	return []check{
		{"acknowledged", "an answered request is acknowledged", section, 0, checkAcknowledged},
		{"stored-first", "no acknowledgement before the reply is stored; a full stream is waited for", section, 0,
			checkStoredFirst},
	}
}

func checkAcknowledged(ctx context.Context, n *node) error {
	r := n.sample(20)
	if _, err := n.answered(ctx, r); err != nil {
		return err
	}
	return n.expectSettled(ctx, r, ackDone)
}

func checkStoredFirst(ctx context.Context, n *node) (err error) {
	makeRoom, err := n.fillReplies(ctx)
	if err != nil {
		return err
	}
	r := n.sample(5)
	early, err := n.unanswerable(ctx, r)
	if failed := makeRoom(); err == nil {
		err = failed
	}
	if err != nil {
		return err
	}
	if early.kind == ackDone || early.kind == ackRemove {
		return differs("no acknowledgement while the reply stream refuses the reply", "%s", early.text)
	}
	if early.kind == ackBack && early.text == ackBack {
		return differs("a delay when the request is handed back", "%s", early.text)
	}
	subject := wire.ReplySubject(n.config.Endpoint)
	if err := n.poll(ctx, 2*patience, func() (bool, error) {
		return n.stored(ctx, wire.StreamReply, subject, r)
	}, "the reply as soon as there is room for it", "none"); err != nil {
		return err
	}
	if early.kind == ackBack {
		return nil // its second delivery is answered like any
	}
	return n.expectSettled(ctx, r, ackDone)
}

// unanswerable asks while no reply can be stored, and returns how the request was let go all the same, if it was.
func (n *node) unanswerable(ctx context.Context, r *request) (early acknowledgement, err error) {
	if err := n.ask(ctx, r); err != nil {
		return early, err
	}
	err = n.within(ctx, patience, func() bool {
		_, settled := n.journal.settled(r.sequence)
		return settled || len(n.journal.of(r.slice())) > 0
	})
	if err != nil {
		return early, differs("a reply that is tried", "nothing in %s", patience)
	}
	// Nothing is what should happen.
	_ = n.within(ctx, withheld, func() (ok bool) {
		early, ok = n.journal.settled(r.sequence)
		return ok
	})
	return early, nil
}
