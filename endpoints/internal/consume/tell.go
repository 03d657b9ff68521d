package consume

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/internal/logs"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// consumerMade asks the server for the consumer and returns when it was made.
func (p *Puller) consumerMade(ctx context.Context) (time.Time, error) {
	consumer, err := p.js.Consumer(ctx, p.stream, wire.ConsumerName(p.endpoint))
	if err != nil {
		return time.Time{}, err
	}
	p.see(consumer.CachedInfo())
	if err := stream.Leads(consumer.CachedInfo().Cluster); err != nil { // it says when it was made all the same
		stream.PermissionsOf(p.nc).Elsewhere.Note(p.nc, nil, err)
	}
	return consumer.CachedInfo().Created, nil
}

// tell sends an acknowledgement for a request that is held, unless the consumer that delivered it is no more. Whatever
// cannot be sent is delivered again, which does no harm.
func (p *Puller) tell(id RequestID, what string, how func(jetstream.Msg) error) {
	made := p.Consumer.Current()
	d := p.Room.delivery(id)
	if !d.Made.Equal(made) {
		p.logAbout(id, d).Warn("could not " + what + " a request: the consumer that delivered it was made anew or does not " +
			"answer; the request may be delivered again")
		return
	}
	if err := how(d.msg); err != nil {
		p.logAbout(id, d).Warn("could not "+what+" a request; it will be delivered again", zap.Error(err))
	}
}

// logAbout returns a log that says which request it is about.
func (p *Puller) logAbout(id RequestID, d Delivery) *zap.Logger {
	log := p.log.With(zap.Uint64("sequence", id.Sequence))
	if d.msg != nil { // it has not been let go of
		log = log.With(logs.OfHeader(d.msg.Headers())...)
	}
	return log
}

// acknowledge, handBack and terminate are the acknowledgements that tell sends.
func acknowledge(msg jetstream.Msg) error { return msg.Ack() }

func handBack(delay time.Duration) func(jetstream.Msg) error {
	return func(msg jetstream.Msg) error { return msg.NakWithDelay(delay) }
}

func terminate(reason error) func(jetstream.Msg) error {
	return func(msg jetstream.Msg) error { return msg.TermWithReason(reason.Error()) }
}
