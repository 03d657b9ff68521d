package endpointstest

import (
	"bytes"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

const ackPrefix = "$JS.ACK."

// tap observes an instance's connection. It passes each message entirely or not at all.
type tap struct {
	net.Conn
	instance *Instance

	writing sync.Mutex
	out     []byte // incomplete message
	subs    []string
	dying   *Kill // the kill that ends the instance in Write
	in      incoming
}

func newTap(conn net.Conn, instance *Instance) *tap {
	return &tap{Conn: conn, instance: instance, in: incoming{instance: instance, pongs: make(chan struct{}, 1)}}
}

// Read implements net.Conn.
func (t *tap) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	t.in.read(p[:n])
	return n, err
}

// Write implements net.Conn. It passes complete messages, up to one that must not pass.
func (t *tap) Write(p []byte) (int, error) {
	t.writing.Lock()
	defer t.writing.Unlock()
	t.out = append(t.out, p...)
	passed := 0
	for {
		op, size := nextOp(t.out[passed:])
		if size == 0 {
			break
		}
		if op.published && !t.instance.sends(op.subject, op.body) {
			return 0, t.die(passed)
		}
		if op.subscribed != "" {
			t.subs = append(t.subs, op.subscribed)
		}
		if op.published && strings.HasPrefix(op.subject, ackPrefix) {
			t.instance.settled(op.subject, op.body)
		}
		passed += size
	}
	if _, err := t.Conn.Write(t.out[:passed]); err != nil {
		return 0, err
	}
	t.out = append(t.out[:0], t.out[passed:]...)
	return len(p), nil
}

// die ends the instance. Messages before the blocked one are still sent.
func (t *tap) die(passed int) error {
	if t.dying != nil {
		_, _ = t.Conn.Write(t.out[:passed]) // the connection is cut anyway
		t.instance.bury(t)
		t.dying.killed <- t.instance
		t.dying = nil
	}
	return io.ErrClosedPipe
}

// quiet stops the server's deliveries and returns once all already sent are read.
func (t *tap) quiet(patience time.Duration) {
	var end []byte
	for _, sid := range t.subs {
		end = append(end, "UNSUB "+sid+"\r\n"...)
	}
	select {
	case <-t.in.pongs: // from before
	default:
	}
	_ = t.SetWriteDeadline(time.Now().Add(patience))
	if _, err := t.Conn.Write(append(end, "PING\r\n"...)); err != nil {
		return
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-t.in.pongs:
	case <-timer.C:
	}
}

// op is an operation of the NATS client protocol.
type op struct {
	published      bool // PUB or HPUB
	delivered      bool // MSG or HMSG
	pong           bool
	subscribed     string // subscription ID
	subject, reply string
	body           []byte
}

// nextOp parses the operation at the start of b and returns its length, or 0 if it is incomplete.
func nextOp(b []byte) (op, int) {
	end := bytes.Index(b, []byte("\r\n"))
	if end < 0 {
		return op{}, 0
	}
	words := strings.Fields(string(b[:end]))
	o, sizes := lineOf(words)
	size := end + len("\r\n")
	if sizes == 0 {
		return o, size
	}
	total, err := strconv.Atoi(words[len(words)-1])
	header := 0
	if sizes == 2 && err == nil {
		header, err = strconv.Atoi(words[len(words)-2])
	}
	end = len(b) - size - len("\r\n") // longest body that b can hold
	if err != nil || header < 0 || header > total || total > end {
		return op{}, 0
	}
	o.body = b[size+header : size+total]
	return o, size + total + len("\r\n")
}

// lineOf parses an operation's line and returns how many sizes end it: 0 without a body, 1, or 2 (headers and total).
func lineOf(words []string) (o op, sizes int) {
	if len(words) == 0 {
		return o, 0
	}
	least := 3 // words without a reply subject
	switch strings.ToUpper(words[0]) {
	case "PONG":
		o.pong = true
	case "SUB": // subject [queue] sid
		o.subscribed = words[len(words)-1]
	case "PUB": // subject [reply] size
		o.published, sizes = true, 1
	case "HPUB": // subject [reply] header-size size
		o.published, sizes, least = true, 2, 4
	case "MSG": // subject sid [reply] size
		o.delivered, sizes, least = true, 1, 4
	case "HMSG": // subject sid [reply] header-size size
		o.delivered, sizes, least = true, 2, 5
	}
	if sizes == 0 || len(words) < least {
		return o, 0
	}
	o.subject = words[1]
	if len(words) > least {
		o.reply = words[len(words)-sizes-1]
	}
	return o, sizes
}

// incoming observes what the server sends.
type incoming struct {
	instance *Instance
	pongs    chan struct{}
	rest     []byte
}

func (in *incoming) read(p []byte) {
	in.rest = append(in.rest, p...)
	passed := 0
	for {
		op, size := nextOp(in.rest[passed:])
		if size == 0 {
			break
		}
		if op.delivered && strings.HasPrefix(op.reply, ackPrefix) {
			in.instance.delivered(op.subject, op.reply)
		}
		if op.pong {
			select {
			case in.pongs <- struct{}{}:
			default:
			}
		}
		passed += size
	}
	in.rest = append(in.rest[:0], in.rest[passed:]...)
}
