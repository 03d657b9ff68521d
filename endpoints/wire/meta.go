// Package wire is the protocol between nodes and services (docs/protocol.md): subjects, headers, requests, replies,
// dead letters and their limits. Programs that use it without the SDK start with [RequestBuilder] and [ParseRequest],
// [ParseReply], [ParseDeadLetter], [Discover].
//
// Untrusted input is limited in depth, count and decompressed size, and never causes a panic. A [MalformedError]
// reports what is wrong with a message; no part of such a message may be used.
//
// The package has no state and, except for [Discover] and [AskContract], sends nothing. Builders, readers and an
// Assembly are for one goroutine; everything else is safe for concurrent use.
package wire

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Mode is how to handle a request.
type Mode string

const (
	// ModeBatch is a chunk of a run.
	ModeBatch Mode = "batch"
	// ModeSingle is a request for one item that a caller waits for.
	ModeSingle Mode = "single"
)

// Meta is the metadata in a request's headers, which its reply repeats.
type Meta struct {
	Run, Slice uuid.UUID
	Step       int
	// Attempt counts the issues of the items, Generation the starts of the run, both from 1.
	Attempt, Generation int
	Mode                Mode

	// ReplyTo is where the reply goes; zero means the nodes.
	ReplyTo Return
	// Stack is the endpoints that wait for the answer, outermost first; empty if a node asks.
	Stack Stack
	// Root is the slice at the origin of all this: Slice itself unless a flow asks.
	Root uuid.UUID
	// Origin names the original requester, for display; may be empty.
	Origin string
	// Deliveries is after how many unanswered deliveries the request fails.
	Deliveries int
	// Requeued is how often an operator has resent the request.
	Requeued int
}

// IdempotencyKey is the same for every attempt at an item in one generation of its run. It includes a hash of the
// item's key, since after a failover that loses commits another item may get the same ordinal.
func (m Meta) IdempotencyKey(ordinal int, key string) string {
	hash := sha256.Sum256([]byte(key))
	id := fmt.Sprintf("%s/%d/%d/%d/%x", m.Run, m.Step, ordinal, m.Generation, hash[:8])
	if m.Stack == "" {
		return id
	}
	return id + "/" + string(m.Stack)
}

// Request returns the headers of a request with this metadata.
func (m Meta) Request() nats.Header {
	h := m.Reply()
	set := func(name, value string) {
		if value != "" {
			h[name] = []string{value}
		}
	}
	set(HeaderReplyTo, m.ReplyTo.String())
	set(HeaderStack, string(m.Stack))
	set(HeaderOrigin, OneLine(Cut(m.Origin, MaxServiceName)))
	if m.Root != uuid.Nil && m.Root != m.Slice {
		set(HeaderRoot, m.Root.String())
	}
	if m.Deliveries != 0 && m.Deliveries != DefaultDeliveries {
		set(HeaderDeliveries, strconv.Itoa(m.Deliveries))
	}
	if m.Requeued > 0 {
		set(HeaderRequeued, strconv.Itoa(m.Requeued))
	}
	return h
}

// Reply returns the headers of the reply.
func (m Meta) Reply() nats.Header {
	mode := m.Mode
	mode = cmp.Or(mode, ModeBatch)
	return nats.Header{
		HeaderVersion:    {ProtocolVersion},
		HeaderRun:        {m.Run.String()},
		HeaderStep:       {strconv.Itoa(m.Step)},
		HeaderSlice:      {m.Slice.String()},
		HeaderAttempt:    {strconv.Itoa(m.Attempt)},
		HeaderGeneration: {strconv.Itoa(m.Generation)},
		HeaderMode:       {string(mode)},
	}
}

// notRelayed rejects messages relayed by a stream, as a header shows. Participants publish directly; a relayed
// message is published by a server on behalf of a user who may lack the permission.
func notRelayed(h nats.Header) error {
	if streams, given := h[jetstream.StreamHeader]; given { // the server appends its own to existing values
		return Malformed(ReasonHeader, "%s is %.80q: the message comes from a stream and not from who it says",
			jetstream.StreamHeader, streams)
	}
	return nil
}

// Prefixes of permitted reply subjects: an inbox, or the server's mapping of one from another account.
const (
	inboxes = "_INBOX"
	mapped  = "_R_."
)

// Answerable reports whether a message over core NATS is a request that may be answered, or has no reply subject. NATS
// does not check reply subjects, so an answer would be published there with this process's rights. A relayed message is
// no request either.
func Answerable(msg *nats.Msg) bool {
	return notRelayed(msg.Header) == nil &&
		(msg.Reply == "" || strings.HasPrefix(msg.Reply, inboxes) || strings.HasPrefix(msg.Reply, mapped))
}

// ParseMeta parses the headers. With an error it still returns the readable IDs.
func ParseMeta(h nats.Header) (Meta, error) {
	var m Meta
	read := headerReader{header: h}
	m.Slice = read.id(HeaderSlice)
	m.Run = read.id(HeaderRun)
	m.Step = read.number(HeaderStep, 0)
	m.Attempt = read.number(HeaderAttempt, 1)
	m.Generation = read.number(HeaderGeneration, 1)
	switch mode := Mode(h.Get(HeaderMode)); mode {
	case "", ModeBatch:
		m.Mode = ModeBatch
	case ModeSingle:
		m.Mode = mode
	default:
		read.fail("%s is %.40q; it must be %s or %s", HeaderMode, mode, ModeBatch, ModeSingle)
	}
	m.readAsker(&read)
	if version := h.Get(HeaderVersion); version != ProtocolVersion {
		return m, Malformed(ReasonVersion, "%s is %.40q; this side speaks %s", HeaderVersion, version, ProtocolVersion)
	}
	if read.err != nil {
		return m, read.err
	}
	return m, nil
}

func (m *Meta) readAsker(read *headerReader) {
	m.Root, m.Deliveries = m.Slice, DefaultDeliveries
	h := read.header
	if h.Get(HeaderRoot) != "" {
		m.Root = read.id(HeaderRoot)
	}
	if h.Get(HeaderDeliveries) != "" {
		m.Deliveries = min(read.number(HeaderDeliveries, 1), MaxDeliver)
	}
	if h.Get(HeaderRequeued) != "" {
		m.Requeued = read.number(HeaderRequeued, 0)
	}
	m.Origin = cleanMessage(Cut(h.Get(HeaderOrigin), MaxServiceName))
	var err error
	if m.ReplyTo, err = ParseReturn(h.Get(HeaderReplyTo)); err != nil {
		read.fail("%s: %v", HeaderReplyTo, err)
	}
	m.Stack, err = ParseStack(h.Get(HeaderStack))
	if deep, ok := errors.AsType[*MalformedError](err); ok && read.err == nil {
		read.err = deep // all else is valid, so the requester can be answered
	} else if err != nil {
		read.fail("%s: %v", HeaderStack, err)
	}
}

// headerReader keeps its first error.
type headerReader struct {
	header nats.Header
	err    *MalformedError
}

func (r *headerReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = Malformed(ReasonHeader, format, args...)
	}
}

func (r *headerReader) id(name string) uuid.UUID {
	value := r.header.Get(name)
	id, err := uuid.Parse(value)
	if err != nil || len(value) != 36 {
		r.fail("%s is %.60q; it must be a UUID of 36 characters", name, value)
		return uuid.Nil
	}
	return id
}

func (r *headerReader) number(name string, lowest int) int {
	value := r.header.Get(name)
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil || int(n) < lowest {
		r.fail("%s is %.40q; it must be a number of at least %d", name, value, lowest)
	}
	return int(n)
}

// HeaderSize returns the bytes of h on the wire, which count towards max_payload.
func HeaderSize(h nats.Header) int {
	n := len("NATS/1.0\r\n\r\n")
	for name, values := range h {
		for _, value := range values {
			n += len(name) + len(": ") + len(value) + len("\r\n")
		}
	}
	return n
}

// ReadMeta parses the headers of a request or reply. It returns readable IDs even with an error, a *MalformedError.
func ReadMeta(h nats.Header) (Meta, error) {
	meta, err := ParseMeta(h)
	if err != nil {
		return meta, About(meta, err)
	}
	return meta, nil
}
