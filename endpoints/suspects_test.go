package endpoints

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// suspect asks for something that was given up before.
func (b *bundle) suspect(endpoint string) wire.Meta {
	b.t.Helper()
	meta := newMeta()
	meta.Deliveries = wire.SuspectDeliveries
	builder := wire.NewRequestBuilder(endpoint, meta, 1<<20)
	builder.Add(0, "k", []byte(`{"n":3}`))
	b.publish(builder.Msg())
	return meta
}

func TestSuspectRunsAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	bystander, suspect := newGate(t), newGate(t)
	check(t, HandleList(svc, "bystander", bystander.handle, Concurrency(4)))
	check(t, HandleList(svc, "suspect", suspect.handle))
	b.Run(svc)
	b.ask("bystander", numbers(1))
	await(t, "bystander", bystander.begun)
	meta := b.suspect("suspect")
	waits := func() bool {
		svc.host.Suspects.Mu.Lock()
		defer svc.host.Suspects.Mu.Unlock()
		return len(svc.host.Suspects.Queue) == 1
	}
	eventually(t, "the suspect waits to be alone", waits)
	if len(suspect.begun) != 0 {
		t.Fatal("the suspect runs beside another")
	}
	bystander.let()
	await(t, "suspect", suspect.begun)
	eventually(t, "the first bystander has gone", func() bool { return svc.endpoints[0].Held() == 0 })
	eventually(t, "it is marked", func() bool { return b.mark("suspect", meta.Slice) == 1 })
	b.ask("bystander", numbers(1))
	eventually(t, "the next is there", func() bool { return svc.endpoints[0].Held() == 1 })
	if n := bystander.calls.Load(); n != 1 {
		t.Errorf("another runs beside the suspect: %d calls", n)
	}
	suspect.let()
	b.collect(3)
	if n := b.mark("suspect", meta.Slice); n != 0 {
		t.Errorf("the mark says %d after the end", n)
	}
}

// mark returns what stands in the mark of a suspect, or 0.
func (b *bundle) mark(endpoint string, slice uuid.UUID) int {
	b.t.Helper()
	stream, err := b.js.Stream(b.ctx, wire.StreamFlow)
	check(b.t, err)
	msg, err := stream.GetLastMsgForSubject(b.ctx, "tranche.flow."+endpoint+"."+slice.String()+".begun")
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(string(msg.Data))
	check(b.t, err)
	return n
}

// TestSuspectThatKillsTwiceIsGivenUp has services lose all they have while they run a request.
func TestSuspectThatKillsTwiceIsGivenUp(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shortWait("killer", time.Second)
	meta := b.ask("killer", numbers(2))
	consumer, err := b.js.Consumer(b.ctx, wire.StreamWork, "killer")
	check(t, err)
	for range serve.SuspectFrom - 1 {
		b.next(consumer)
	}
	var calls atomic.Int32
	for n := range serve.MaxBegun + 1 {
		svc := b.service(func(c *Config) { c.DrainTimeout = time.Millisecond })
		begun := make(chan struct{}, 1)
		check(t, HandleList(svc, "killer", func(ctx context.Context, _ *Chunk[number, square]) error {
			calls.Add(1)
			begun <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}))
		stop := b.Run(svc)
		if n == serve.MaxBegun {
			w := b.collect(1)[meta.Slice]
			if w.failure == nil || w.failure.Code != wire.CodeDeliveries || !w.failure.Retry || w.answered != 0 {
				t.Errorf("answered %d, failure %v", w.answered, w.failure)
			}
			if s := svc.Stats()[0]; s.GivenUp != 1 || s.Redelivered != 1 {
				t.Errorf("stats %+v", s)
			}
			break
		}
		await(t, "suspect", begun)
		eventually(t, "it is marked", func() bool { return b.mark("killer", meta.Slice) == n+1 })
		svc.host.NC.Close()
		_ = stop()
	}
	if n := calls.Load(); n != serve.MaxBegun {
		t.Errorf("it was begun %d times", n)
	}
}

func TestSuspectRunsWithoutAMark(t *testing.T) {
	t.Parallel()
	b := setup(t)
	check(t, b.js.DeleteStream(b.ctx, wire.StreamFlow))
	serveEach(b, "square", squares)
	meta := b.suspect("square")
	if w := b.collect(1)[meta.Slice]; w.failure != nil || w.answered != 1 {
		t.Errorf("answered %d, failure %v", w.answered, w.failure)
	}
}

// TestSuspectThatAsksItsOwnProcess has the handler of a suspect wait for what another endpoint of the process does.
func TestSuspectThatAsksItsOwnProcess(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	svc.host.Suspects.Patience = 100 * time.Millisecond
	helped := make(chan struct{}, 2)
	check(t, HandleEach(svc, "helper", func(ctx context.Context, in number) (square, error) {
		helped <- struct{}{}
		return squares(ctx, in)
	}))
	check(t, HandleEach(svc, "suspect", func(ctx context.Context, in number) (square, error) {
		b.ask("helper", numbers(1)) // for nobody that could be known
		await(t, "help", helped)
		return squares(ctx, in)
	}))
	b.Run(svc)
	b.suspect("suspect")
	b.collect(2)
	if n := b.logged.FilterMessageSnippet("others are handled beside it").Len(); n != 1 {
		t.Errorf("logged %d times", n)
	}
}

func TestSuspectIsHandedBackAtTheEnd(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc, other := b.service(), b.service()
	bystander := newGate(t)
	check(t, HandleList(svc, "bystander", bystander.handle))
	check(t, HandleEach(svc, "square", squares))
	check(t, HandleEach(other, "square", squares))
	stop := b.Run(svc)
	b.ask("bystander", numbers(1))
	await(t, "bystander", bystander.begun)
	meta := b.suspect("square")
	eventually(t, "the suspect waits", func() bool { return svc.endpoints[1].Held() == 1 })
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	b.Run(other)
	if w := b.collect(1)[meta.Slice]; w == nil || w.answered != 1 {
		t.Errorf("the suspect: %+v", w)
	}
	bystander.let()
	check(t, await(t, "end of Run", stopped))
}

// TestSuspectFlowWaitsForNothingOfItsOwn has a flow and what it asks in one process, all of it suspect.
func TestSuspectFlowWaitsForNothingOfItsOwn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	check(t, HandleFlow(svc, "flow", threeStages()))
	check(t, HandleEach(svc, "double", doubleOf))
	check(t, HandleEach(svc, "square", squares))
	b.Run(svc)
	meta := b.suspect("flow")
	if w := b.collect(1)[meta.Slice]; w == nil || w.answered != 1 || string(w.slots[0].Data) != `{"square":36}` {
		t.Errorf("reply %+v", w)
	}
	alone := b.logged.FilterMessage("a suspect is handled").FilterField(zap.Bool("alone", true))
	if alone.Len() < 3 {
		t.Errorf("%d stages ran alone", alone.Len())
	}
	if n := svc.Stats()[0].Stages; n != 3 {
		t.Errorf("the flow has %d stages", n)
	}
}
