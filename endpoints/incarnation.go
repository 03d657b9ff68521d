package endpoints

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
)

// knownFor is how long an answer about the consumer is taken for true. It bounds both the questions asked (ten a second
// and endpoint, however many chunks there are) and the time in which a consumer made anew can go unnoticed.
const knownFor = 100 * time.Millisecond

// errNoConsumer ends a fetch before it begins.
var errNoConsumer = errors.New("the consumer is not there or does not answer")

// Incarnation knows when the consumer that a server has now was made. A stream or consumer that is deleted and made
// anew counts its messages from 1 again, while the server takes an acknowledgement by the sequence alone: one for an
// old message would remove a new one that nobody has seen to, and a sign of life would keep it from being delivered
// again. So each delivery remembers the incarnation that it came from, and only the one of now is ever spoken to.
//
// It is safe for concurrent use.
type Incarnation struct {
	Ask func(context.Context) (time.Time, error) // when the consumer was made; set before the first use

	mu    sync.Mutex
	asked time.Time // when the last question was put
	made  time.Time // its answer; zero when there was none
}

// Current returns when the consumer was made, as of at most knownFor ago. It is zero when the server does not say; then
// nothing may be acknowledged: what is not is delivered again, which does no harm.
func (i *Incarnation) Current() time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	if time.Since(i.asked) < knownFor {
		return i.made
	}
	// Requests are settled after every context of the service has ended, too.
	ctx, cancel := context.WithTimeout(context.Background(), ackTimeout)
	defer cancel()
	asked := time.Now()
	made, err := i.Ask(ctx)
	if err != nil {
		// Those who waited for this answer do not each wait as long again.
		asked, made = time.Now(), time.Time{}
	}
	i.asked, i.made = asked, made
	return made
}

// Learn takes an answer that came otherwise, to a question put at asked.
func (i *Incarnation) Learn(asked, made time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.asked, i.made = asked, made
}

// consumerMade asks the server for the consumer and returns when it was made.
func (p *puller) consumerMade(ctx context.Context) (time.Time, error) {
	consumer, err := p.js.Consumer(ctx, p.stream, ConsumerName(p.endpoint))
	if err != nil {
		return time.Time{}, err
	}
	p.see(consumer.CachedInfo())
	if err := leads(consumer.CachedInfo().Cluster); err != nil { // it says when it was made all the same
		PermissionsOf(p.nc).elsewhere.note(p.nc, nil, err)
	}
	return consumer.CachedInfo().Created, nil
}

// tell sends an acknowledgement for a request that is held, unless the consumer that delivered it is no more. Whatever
// cannot be sent is delivered again, which does no harm.
func (p *puller) tell(id requestID, what string, how func(jetstream.Msg) error) {
	made := p.consumer.Current()
	d := p.room.delivery(id)
	if !d.made.Equal(made) {
		p.logAbout(id, d).Warn("could not " + what + " a request: the consumer that delivered it was made anew or does not " +
			"answer; the request may be delivered again")
		return
	}
	if err := how(d.msg); err != nil {
		p.logAbout(id, d).Warn("could not "+what+" a request; it will be delivered again", zap.Error(err))
	}
}

// logAbout returns a log that says which request it is about.
func (p *puller) logAbout(id requestID, d delivery) *zap.Logger {
	log := p.log.With(zap.Uint64("sequence", id.sequence))
	if d.msg != nil { // it has not been let go of
		log = log.With(headerFields(d.msg.Headers())...)
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
