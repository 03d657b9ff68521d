package pull

import (
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const patience = 2 * time.Minute

// played is a server of pulls that a test plays, under a prefix of its own.
type played struct {
	t      *testing.T
	nc     *nats.Conn
	puller *Puller
	asked  chan *nats.Msg
	told   chan struct{} // something was taken, or more or less is late

	mu    sync.Mutex
	late  amount
	most  amount
	taken int
}

func play(t *testing.T) *played {
	t.Helper()
	ns := testenv.NATS(t)
	p := &played{t: t, nc: testenv.Conn(t, ns), asked: make(chan *nats.Msg, 16), told: make(chan struct{}, 1)}
	testenv.Must(p.nc.ChanSubscribe("played.CONSUMER.MSG.NEXT.S.C", p.asked))(t)
	testenv.NoError(t, p.nc.Flush())
	js := testenv.Must(jetstream.NewWithAPIPrefix(testenv.Conn(t, ns), "played"))(t)
	p.puller = New(Config{JS: js, Stream: "S", Consumer: "C", Take: p.take, Late: p.owe,
		Heartbeat: time.Hour}) // no pull ends by itself, however slow this machine is
	t.Cleanup(p.puller.Close)
	return p
}

func (p *played) take(jetstream.Msg, time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken++
	p.tell()
}

// tell never waits: one signal is enough to look at the state again.
func (p *played) tell() {
	select {
	case p.told <- struct{}{}:
	default:
	}
}

func (p *played) owe(messages, bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late.messages += messages
	p.late.bytes += bytes
	p.most.messages = max(p.most.messages, p.late.messages)
	p.tell()
}

func (p *played) state() (taken int, late amount) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken, p.late
}

// open has the puller ask for messages, and returns the pull and where it wants them.
func (p *played) open(messages int) (*Pull, string) {
	p.t.Helper()
	one := testenv.Must(p.puller.Open(time.Now(), messages, 2<<20))(p.t)
	select {
	case msg := <-p.asked:
		var r request
		testenv.NoError(p.t, json.Unmarshal(msg.Data, &r))
		if r.Batch != messages || r.MaxBytes != 2<<20 {
			p.t.Errorf("it asked for %+v", r)
		}
		return one, msg.Reply
	case <-time.After(patience):
		p.t.Fatal("it did not ask")
		return nil, ""
	}
}

// send sends messages of a stream, except the reply subject, which the server lets no one else use.
func (p *played) send(inbox string, messages int) {
	p.t.Helper()
	for range messages {
		testenv.NoError(p.t, p.nc.PublishRequest(inbox, "ack", []byte("work")))
	}
	testenv.NoError(p.t, p.nc.Flush())
}

func (p *played) status(inbox, code, description string, left int) {
	p.t.Helper()
	msg := nats.NewMsg(inbox)
	msg.Header = nats.Header{"Status": {code}, "Description": {description}}
	if left >= 0 {
		msg.Header.Set("Nats-Pending-Messages", strconv.Itoa(left))
		msg.Header.Set("Nats-Pending-Bytes", strconv.Itoa(1<<20))
	}
	testenv.NoError(p.t, p.nc.PublishMsg(msg))
	testenv.NoError(p.t, p.nc.Flush())
}

func (p *played) wait(what string, done <-chan struct{}) {
	p.t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		p.t.Fatalf("%s: it did not come", what)
	}
}

// until waits until taken and late have these values.
func (p *played) until(taken, late int) {
	for t, l := p.state(); t != taken || l.messages != late; t, l = p.state() {
		p.wait("what is taken and late", p.told)
	}
}

// closed waits for the end of the only pull, by when so many were taken.
func (p *played) closed(one *Pull, want int) {
	p.t.Helper()
	p.wait("the end of the subscription", one.unsubscribed)
	if taken, late := p.state(); taken != want || late != (amount{}) || p.listening() != 0 {
		p.t.Errorf("taken %d, late %+v; want %d and none", taken, late, want)
	}
}

func (p *played) over(one *Pull) error {
	p.t.Helper()
	p.wait("the end of the pull", one.Over())
	return one.Err()
}

func (p *played) listening() int {
	p.puller.mu.Lock()
	defer p.puller.mu.Unlock()
	return len(p.puller.pulls)
}

func TestLateMessagesAreTakenAndCounted(t *testing.T) {
	t.Parallel()
	p := play(t)
	p.puller.config.Timeout = time.Hour
	one, inbox := p.open(8)
	p.send(inbox, 1)
	p.status(inbox, "409", "Message Size Exceeds MaxBytes", 3)
	testenv.NoError(t, p.over(one))
	if taken, late := p.state(); taken != 1 || late.messages != 4 || late.bytes <= 0 {
		t.Errorf("taken %d, late %+v; want 1 and 4 messages", taken, late)
	}
	p.send(inbox, 3)
	p.until(4, 1)
	testenv.Same(t, p.listening(), 1, "it does not listen any more, and one is still to come")
	p.send(inbox, 1)
	p.closed(one, 5)
}

// TestWhatNeverComesDoesNotCountForEver has a leader promise what it never sends.
func TestWhatNeverComesDoesNotCountForEver(t *testing.T) {
	t.Parallel()
	p := play(t)
	one, inbox := p.open(2)
	began := time.Now()
	p.status(inbox, "409", "Batch Completed", 0)
	testenv.NoError(t, p.over(one))
	p.wait("the count of what is late", one.counted)
	if took := time.Since(began); took < lateTimeout || p.most.messages != 2 {
		t.Errorf("%d messages counted for %s", p.most.messages, took)
	}
	p.send(inbox, 2) // the leader was only slow
	p.closed(one, 2)
}

func TestEndsOfPulls(t *testing.T) {
	t.Parallel()
	p := play(t)
	for _, tc := range []struct {
		name string
		end  func(one *Pull, inbox string)
		err  error
		left int // subscriptions
	}{
		{"whole", func(_ *Pull, inbox string) { p.send(inbox, 2) }, nil, 0},
		{"time", func(_ *Pull, inbox string) { p.status(inbox, "408", "Request Timeout", 2) }, nil, 0},
		{"deleted", func(_ *Pull, inbox string) { p.status(inbox, "409", "Consumer Deleted", -1) },
			&Error{"409", "Consumer Deleted"}, 1},
		{"no responders", func(_ *Pull, inbox string) { p.status(inbox, "503", "", -1) }, nats.ErrNoResponders, 1},
		{"abandoned", func(one *Pull, _ string) { one.Abandon() }, errAbandoned, 1},
		{"silence", func(*Pull, string) {}, ErrSilent, 1},
	} {
		if errors.Is(tc.err, ErrSilent) {
			p.puller.config.Heartbeat = Heartbeat
		}
		one, inbox := p.open(2)
		tc.end(one, inbox)
		err := p.over(one)
		if !errors.Is(err, tc.err) && (err == nil || tc.err == nil || err.Error() != tc.err.Error()) {
			t.Errorf("%s: error %v, want %v", tc.name, err, tc.err)
		}
		testenv.Until(t, patience, tc.name+": at most one lingers", func() bool { return p.listening() == tc.left })
		if _, late := p.state(); late != (amount{}) {
			t.Errorf("%s: %+v count as late", tc.name, late)
		}
	}
}

// TestCloseTakesWhatIsOnItsWay closes while a promise is open.
func TestCloseTakesWhatIsOnItsWay(t *testing.T) {
	t.Parallel()
	p := play(t)
	p.puller.config.Timeout = time.Hour
	one, inbox := p.open(5)
	p.status(inbox, "409", "Batch Completed", 0)
	testenv.NoError(t, p.over(one))
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		p.puller.Close()
	}()
	p.send(inbox, 5)
	p.wait("the end of Close", closed)
	p.closed(one, 5)
}

func TestSettleWaitsForWhatComes(t *testing.T) {
	t.Parallel()
	p := play(t)
	one, inbox := p.open(2)
	p.send(inbox, 1)
	p.until(1, 0)
	began := time.Now()
	one.Settle()
	if took := time.Since(began); took < Settling {
		t.Errorf("it settled in %s", took)
	}
}

func TestSubject(t *testing.T) {
	t.Parallel()
	nc := testenv.Conn(t, testenv.NATS(t))
	plain := testenv.Must(jetstream.New(nc))(t)
	domain := testenv.Must(jetstream.NewWithDomain(nc, "hub"))(t)
	dotted := testenv.Must(jetstream.NewWithAPIPrefix(nc, "JS.tranche.API."))(t)
	for want, js := range map[string]jetstream.JetStream{
		"$JS.API.CONSUMER.MSG.NEXT.S.C": plain, "$JS.hub.API.CONSUMER.MSG.NEXT.S.C": domain,
		"JS.tranche.API.CONSUMER.MSG.NEXT.S.C": dotted,
	} {
		testenv.Same(t, Subject(js, "S", "C"), want, "the subject")
	}
}
