package endpointstest

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
)

// handBackTimeout bounds what is done about a killed instance.
const handBackTimeout = 2 * time.Second

var errKilled = errors.New("the instance was killed")

// Instance is a running service.
type Instance struct {
	kit      *Kit
	config   endpoints.Config
	register func(*endpoints.Service) error

	nc    *nats.Conn
	end   context.CancelFunc
	ended chan struct{}
	err   error // of Run, once ended is closed

	mu     sync.Mutex
	conn   *tap
	killed bool
	held   map[string]delivery // what is not acknowledged, by acknowledgement subject
}

// Serve runs a service with the endpoints that register adds, until it is stopped or killed or the test ends. Calling
// it again with the same function runs one more instance. configure may change the service's configuration.
func (k *Kit) Serve(register func(*endpoints.Service) error, configure ...func(*endpoints.Config)) *Instance {
	k.t.Helper()
	config := endpoints.Config{Name: "tested", Version: "1.0.0", Log: k.log, DrainTimeout: k.patience / 2}
	for _, f := range configure {
		f(&config)
	}
	i := &Instance{kit: k, config: config, register: register, ended: make(chan struct{}), held: map[string]delivery{}}
	nc, err := nats.Connect("nats://endpointstest", nats.SetCustomDialer(dialer{i}), nats.NoReconnect(),
		nats.Name(config.Name), nats.Timeout(k.ownPatience()),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		k.t.Fatalf("endpointstest: connect the service to NATS: %v", err)
	}
	i.nc = nc
	svc, err := endpoints.New(nc, config)
	if err == nil {
		err = register(svc)
	}
	if err != nil {
		nc.Close()
		k.t.Fatalf("endpointstest: make the service: %v", err)
	}
	i.run(svc)
	return i
}

func (i *Instance) run(svc *endpoints.Service) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(i.kit.ctx))
	i.end = cancel
	i.kit.mu.Lock()
	i.kit.instances = append(i.kit.instances, i)
	i.kit.mu.Unlock()
	go func() {
		defer close(i.ended)
		i.err = svc.Run(ctx)
		i.nc.Close()
	}()
	i.kit.t.Cleanup(i.Stop)
}

// Stop has the instance take no more work and waits until it has ended what it is at. It fails the test when it does
// not end well. An instance that was stopped or killed may be stopped again.
func (i *Instance) Stop() {
	i.kit.t.Helper()
	i.end()
	timer := time.NewTimer(i.kit.patience)
	defer timer.Stop()
	select {
	case <-i.ended:
	case <-timer.C:
		i.kit.t.Errorf("endpointstest: service %s is still at work %s after it was stopped: does a handler not heed its "+
			"context?", i.config.Name, i.kit.patience)
		return
	}
	if i.err != nil && !i.isKilled() {
		i.kit.t.Errorf("endpointstest: service %s ended: %v", i.config.Name, i.err)
	}
}

// Kill ends the instance as a crash does: nothing that it has not sent yet will be sent. A handler that is at work is
// not interrupted, but its answers go nowhere. What the instance held is delivered again at once.
func (i *Instance) Kill() {
	i.kit.t.Helper()
	if conn := i.kill(); conn != nil {
		conn.writing.Lock()
		defer conn.writing.Unlock()
		i.bury(conn)
	}
}

// Restart runs the service again, as one more instance.
func (i *Instance) Restart() *Instance {
	i.kit.t.Helper()
	return i.kit.Serve(i.register, func(c *endpoints.Config) { *c = i.config })
}

func (i *Instance) isKilled() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.killed
}

// attach taps a new connection.
func (i *Instance) attach(conn net.Conn) (net.Conn, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.killed {
		return nil, cmp.Or(conn.Close(), errKilled)
	}
	i.conn = newTap(conn, i)
	return i.conn, nil
}

// kill has nothing more pass, and returns the connection to be ended, once.
func (i *Instance) kill() *tap {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.killed {
		return nil
	}
	i.killed = true
	return i.conn
}

// bury ends the connection of a killed instance. First the server is told to send no more, and what it has sent is
// read, so that nothing is lost that would rest until its AckWait is over. It is called with conn.writing held.
func (i *Instance) bury(conn *tap) {
	conn.quiet(handBackTimeout)
	_ = conn.Conn.Close() // it is gone either way
	i.handBack()
}

// handBack has the server deliver again what a killed instance held, instead of waiting for its AckWait.
func (i *Instance) handBack() {
	i.mu.Lock()
	held := i.held
	i.held = map[string]delivery{}
	i.mu.Unlock()
	for subject := range held {
		if err := i.kit.nc.Publish(subject, []byte("-NAK")); err != nil {
			return // the kit's connection is closed: the test is over
		}
	}
	_ = i.kit.nc.FlushTimeout(handBackTimeout) // likewise
}

// delivered notes a message that the server has sent.
func (i *Instance) delivered(subject, ack string) {
	point, ok := pointOf(subject)
	if !ok {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.held[ack] = delivery{point, i.kit.deliveries.Add(1)}
}

// sends reports whether a message may pass on its way to the server. When it may not the instance is dead.
func (i *Instance) sends(subject string, body []byte) bool {
	if i.isKilled() {
		return false
	}
	kill := i.kit.killFor(i, subject, body)
	if kill == nil {
		return true
	}
	if conn := i.kill(); conn != nil {
		conn.dying = kill
	}
	return false
}

// acknowledges returns what an acknowledgement is about. It is false for a sign of life and for a hand-back.
func (i *Instance) acknowledges(subject string, body []byte) (delivery, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	d, ok := i.held[subject]
	return d, ok && string(body) == "+ACK"
}

// settled notes that a delivery is no longer held, unless all that was said of it is that it is.
func (i *Instance) settled(subject string, body []byte) {
	if string(body) == "+WPI" {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.held, subject)
}
