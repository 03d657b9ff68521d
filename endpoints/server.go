package endpoints

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
)

const (
	pullMaxBytes  = 8 << 20
	pullOverhead  = 4 << 10 // subjects and the acknowledgement subject, which count as bytes of a pull
	pullHeartbeat = 400 * time.Millisecond
	// settle is how long an open pull is left alone when the service stops. Ending it at once would lose what the
	// server is just sending: it would rest unseen until its AckWait is over.
	settle = 100 * time.Millisecond
)

// endpointServer serves one endpoint: it fetches requests, within its room, and handles each in a goroutine.
type endpointServer struct {
	name    string
	options options
	byItem  bool
	begin   func(*job) work

	service  *Service
	log      *zap.Logger
	room     *room
	slots    chan struct{}
	stats    stats
	consumer Incarnation
	beat     *time.Ticker // at a third of the consumer's AckWait
	bound    bool         // has been, once
}

// scope is the span of one Run. stopping ends first, then working, then sending.
type scope struct {
	stopping <-chan struct{}
	working  context.Context //nolint:containedctx // of handlers; passed down, never kept
	sending  context.Context //nolint:containedctx // of replies; likewise
}

// run serves until ctx ends and every request held has been dealt with.
func (e *endpointServer) run(ctx context.Context, scope scope) error {
	e.beat = time.NewTicker(AckWait / 3) // until bind knows better
	defer e.beat.Stop()
	ended := make(chan struct{})
	var ticker, jobs sync.WaitGroup
	ticker.Go(func() { e.tick(ended) })
	err := e.fetchAll(ctx, scope, &jobs)
	jobs.Wait()
	close(ended)
	ticker.Wait()
	return err
}

// fetchAll binds to the consumer, fetches, and binds again whenever fetching fails. It returns nil when ctx ends.
func (e *endpointServer) fetchAll(ctx context.Context, scope scope, jobs *sync.WaitGroup) error {
	reconnected := e.service.nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer e.service.nc.RemoveStatusListener(reconnected)
	for {
		consumer, err := e.bind(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		for err == nil && ctx.Err() == nil {
			err = e.fetch(ctx, scope, consumer, jobs, reconnected)
		}
		if ctx.Err() == nil {
			e.log.Debug("fetching ended; binding again", zap.Error(err))
		}
	}
}

// fetch asks for as many requests as there is room for and starts a job for each as it comes. It returns when the
// server has ended the pull, and with an error when it did so for any reason but time or size.
func (e *endpointServer) fetch(
	ctx context.Context, scope scope, consumer jetstream.Consumer, jobs *sync.WaitGroup, reconnected <-chan nats.Status,
) error {
	n, held, err := e.room.wait(ctx)
	if err != nil {
		return nil // ctx has ended; the caller sees it
	}
	// Before the pull: what a consumer made after this delivers is then not taken for its own, which costs a delivery.
	made := e.consumer.Current()
	if made.IsZero() {
		return errNoConsumer
	}
	pull, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	keep := context.AfterFunc(ctx, func() {
		_ = wait(pull, settle) // ends sooner with the pull
		cancel()
	})
	defer keep()
	// A limit below the size of one message would stall the pull without a word.
	room := max(pullMaxBytes-held, int(e.service.nc.MaxPayload())+pullOverhead)
	batch, err := consumer.Fetch(n, jetstream.FetchContext(pull), jetstream.FetchHeartbeat(pullHeartbeat),
		jetstream.FetchMaxBytes(room))
	if err != nil {
		return err
	}
	for messages := batch.Messages(); ; {
		select {
		case msg, more := <-messages:
			if !more {
				return batch.Error()
			}
			// Held here and not by the job, so that the next fetch counts it.
			if id, isNew := e.hold(delivery{msg, made}); isNew {
				jobs.Go(func() { e.handle(scope, id, msg) })
			}
		case <-reconnected:
			cancel() // the pull was lost with the connection; what has arrived is still in messages
		}
	}
}

// tick tells the server, in time, that what is held is being worked on.
func (e *endpointServer) tick(ended <-chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case <-e.beat.C:
		}
		e.sendSigns()
	}
}

func (e *endpointServer) sendSigns() {
	held := e.room.deliveries()
	if len(held) == 0 {
		return
	}
	made := e.consumer.Current()
	for _, d := range held {
		if !d.made.Equal(made) {
			continue // it would keep another request from being delivered again
		}
		if err := d.msg.InProgress(); err != nil {
			e.log.Debug("a sign of life could not be sent", zap.Error(err))
		}
	}
}

// prepare sets up the reply to a request.
func (e *endpointServer) prepare(sending context.Context, a *answers, meta Meta, trace string) {
	a.out, a.ctx = e.service.outbox, sending
	a.giveUp = func(error) {}
	a.subject = ReplySubject(e.name)
	a.header = meta.header()
	a.header[HeaderService] = []string{e.service.identity}
	a.header[HeaderContentType] = []string{contentTypeJSON}
	if trace != "" {
		a.header[HeaderTrace] = []string{trace}
	}
	a.limit = min(int(e.service.nc.MaxPayload())-headerSize(a.header)-replyReserve, DefaultMaxBody)
	a.flushAt = e.options.flushBytes
	a.squeeze = e.options.compress
}
