package flow

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

// StageReply is one message of the reply to a request.
type StageReply struct {
	*wire.Reply
	Request int
}

// gatherHead lists the reply messages received for a suspended chunk. It is updated by compare-and-set, so of two
// instances that receive the last two messages, exactly one sees both.
type gatherHead struct {
	Parts []gatherPart `json:"parts"`
	// Done names the part that completed the replies. Its receiver runs the stage; it is not parked.
	Done string `json:"done,omitempty"`
}

type gatherPart struct {
	Name     string `json:"n"` // where it is parked
	Request  int    `json:"r"`
	Ordinals []int  `json:"i"` // that it was the first to answer
	Final    bool   `json:"f,omitempty"`
	Answered int    `json:"a,omitempty"` // if final: number of slots in the whole reply
	Whole    bool   `json:"w,omitempty"` // this message alone holds them all
}

// maxConflicts bounds the retries of a conflicting update.
const maxConflicts = 64

// longestConflict bounds how often the pause between them doubles.
const longestConflict = 6

type gathering struct {
	store  *Store
	turns  *turns
	id     wire.FlowID
	from   *Suspended
	limits wire.Limits
	crash  func(string)
	parts  []string // parts in the stream besides the state
}

// take handles a reply message. It returns all messages if they are complete and this one must run the stage.
func (g *gathering) take(ctx context.Context, name string, reply StageReply, msg *nats.Msg) ([]StageReply, error) {
	part := g.part(name, reply)
	if len(g.from.Requests) == 1 && part.ends(g.from.asked[0], len(part.Ordinals)) {
		return []StageReply{reply}, nil
	}
	give, err := g.turns.take(ctx, g.id)
	if err != nil {
		return nil, err
	}
	defer give()
	for conflict := range maxConflicts {
		whole, err := g.note(ctx, part, msg)
		switch {
		case errors.Is(err, errOtherWriter):
			// Random, so that competing instances spread out.
			pause := time.Millisecond + rand.N(time.Millisecond<<min(conflict, longestConflict))
			if err := backoff.Sleep(ctx, pause); err != nil {
				return nil, err
			}
		case err != nil:
			return nil, err
		case whole != nil:
			return g.collect(ctx, whole, reply)
		default:
			return nil, nil
		}
	}
	return nil, fmt.Errorf("gather replies for %s: others were ahead %d times", g.id, maxConflicts)
}

// note records a message, parked unless it is the last. It returns the head if this message must run the stage.
func (g *gathering) note(ctx context.Context, part gatherPart, msg *nats.Msg) (*gatherHead, error) {
	head, sequence, err := g.head(ctx)
	if err != nil {
		return nil, err
	}
	added, news := head.add(part)
	switch {
	case !news:
		return nil, nil
	case !added: // the last one, redelivered
		return head, nil
	case g.complete(head):
		head.Done = part.Name
	default:
		if err := g.parkOnce(ctx, part.Name, msg); err != nil {
			return nil, err
		}
	}
	err = g.write(ctx, head, sequence)
	g.crash("reply noted")
	if err != nil || head.Done != part.Name {
		return nil, err
	}
	return head, nil
}

// part describes a message, without unrequested and duplicate slots.
func (g *gathering) part(name string, reply StageReply) gatherPart {
	p := gatherPart{Name: name, Request: reply.Request, Final: reply.Answered >= 0}
	if p.Final {
		p.Answered, p.Whole = reply.Answered, len(reply.Slots) >= reply.Answered
	}
	seen := make([]bool, len(g.from.Items))
	p.Ordinals = make([]int, 0, len(reply.Slots))
	for i := range reply.Slots {
		ordinal := reply.Slots[i].Ordinal
		if n, asked := g.from.find(reply.Request, ordinal); asked && !seen[n] {
			seen[n] = true
			p.Ordinals = append(p.Ordinals, ordinal)
		}
	}
	return p
}

// ends reports whether p completes its request's reply: it is final, or all items are answered.
func (p gatherPart) ends(asked, answered int) bool {
	return answered >= asked || p.Final && (p.Whole || answered >= p.Answered)
}

// add adds a message. news is false if it was known as one of several, or adds nothing.
func (h *gatherHead) add(p gatherPart) (added, news bool) {
	known := map[int]bool{}
	final := false
	for _, other := range h.Parts {
		if other.Name == p.Name {
			return false, h.Done == p.Name
		}
		if other.Request == p.Request {
			final = final || other.Final
			for _, ordinal := range other.Ordinals {
				known[ordinal] = true
			}
		}
	}
	p.Ordinals = slices.DeleteFunc(slices.Clone(p.Ordinals), func(ordinal int) bool { return known[ordinal] })
	if h.Done != "" || len(p.Ordinals) == 0 && (!p.Final || final) {
		return false, false
	}
	h.Parts = append(h.Parts, p)
	return true, true
}

func (g *gathering) complete(h *gatherHead) bool {
	for r := range g.from.Requests {
		answered, ended := 0, false
		for _, p := range h.Parts {
			if p.Request == r {
				answered += len(p.Ordinals)
			}
		}
		for _, p := range h.Parts {
			ended = ended || p.Request == r && p.ends(g.from.asked[r], answered)
		}
		if !ended {
			return false
		}
	}
	return true
}

// head returns the messages so far, and the sequence that an update must replace.
func (g *gathering) head(ctx context.Context) (*gatherHead, uint64, error) {
	msg, sequence, err := g.store.get(ctx, g.store.subject(g.id, PartHead))
	if errors.Is(err, errNoState) && !errors.Is(err, errDone) {
		return &gatherHead{}, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	head, err := decodeHead(msg.Data, len(g.from.Requests))
	if err != nil {
		return nil, 0, fmt.Errorf("replies for %s: %w", g.id, err)
	}
	return head, sequence, nil
}

func decodeHead(body []byte, requests int) (*gatherHead, error) {
	head := &gatherHead{}
	if err := json.Unmarshal(body, head); err != nil {
		return nil, fmt.Errorf("read the list of replies: %w", err)
	}
	for _, p := range head.Parts {
		if p.Request < 0 || p.Request >= requests || wire.ValidateName(p.Name) != nil {
			return nil, fmt.Errorf("read the list of replies: part %.80q of request %d is none", p.Name, p.Request)
		}
	}
	return head, nil
}

func (g *gathering) write(ctx context.Context, head *gatherHead, sequence uint64) error {
	body, err := json.Marshal(head)
	if err != nil {
		return fmt.Errorf("note a reply for %s: %w", g.id, err)
	}
	return g.store.replace(ctx, g.store.subject(g.id, PartHead), sequence, body)
}

// parkOnce parks the message once, despite conflicts. If it then becomes the last one, it is removed with the rest.
func (g *gathering) parkOnce(ctx context.Context, name string, msg *nats.Msg) error {
	if slices.Contains(g.parts, name) {
		return nil
	}
	if err := g.park(ctx, name, msg); err != nil {
		return err
	}
	g.parts = append(g.parts, name)
	g.crash("reply parked")
	return nil
}

// park stores a reply message until the rest has arrived.
func (g *gathering) park(ctx context.Context, name string, msg *nats.Msg) error {
	header := maps.Clone(msg.Header)
	maps.DeleteFunc(header, func(name string, _ []string) bool { return !isParkedHeader(name) })
	header[wire.HeaderTTL] = []string{g.store.TTL}
	parked := &nats.Msg{Subject: g.store.subject(g.id, name), Header: header, Data: msg.Data}
	if err := g.store.publish(ctx, parked); err != nil {
		return fmt.Errorf("park a reply for %s: %w", g.id, err)
	}
	return nil
}

// isParkedHeader selects the headers of the reply from JetStream's own.
func isParkedHeader(name string) bool {
	switch name {
	case wire.HeaderVersion, wire.HeaderRun, wire.HeaderStep, wire.HeaderSlice, wire.HeaderAttempt,
		wire.HeaderGeneration, wire.HeaderMode, wire.HeaderFinal,
		wire.HeaderService, wire.HeaderError, wire.HeaderErrorCode, wire.HeaderEncoding, wire.HeaderContentType:
		return true
	default:
		return false
	}
}

func (g *gathering) collect(ctx context.Context, head *gatherHead, last StageReply) ([]StageReply, error) {
	var all []StageReply
	g.parts = append(g.parts, PartHead)
	for _, p := range head.Parts {
		if p.Name == head.Done {
			all = append(all, last)
			continue
		}
		msg, err := g.parked(ctx, p.Name)
		if err != nil {
			return nil, err
		}
		reply, err := wire.ParseReplyOf(g.from.Requests[p.Request].Endpoint, msg.Header, msg.Data, g.limits)
		if err != nil {
			return nil, fmt.Errorf("read back a reply for %s: %w", g.id, err)
		}
		all = append(all, StageReply{reply, p.Request})
		g.parts = append(g.parts, p.Name)
	}
	return all, nil
}

// parked reads a message that exists, even if the replica that answers is behind.
func (g *gathering) parked(ctx context.Context, name string) (*nats.Msg, error) {
	for attempt := 0; ; attempt++ {
		msg, _, err := g.store.get(ctx, g.store.subject(g.id, name))
		if !mayAppear(err) || attempt == len(lag) {
			return msg, torn(err)
		}
		if err := backoff.Sleep(ctx, lag[attempt]); err != nil {
			return nil, err
		}
	}
}
