package natsaccess

import (
	"fmt"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// unanswered bounds how long the server remembers where the answer to a direct request would go: services answer
// elsewhere, and that nobody listens is said at once.
const unanswered = time.Second

// confirmed bounds how long it remembers who waits to hear that an acknowledgement has arrived. Nothing but that is
// answered, and what is not answered stays in the memory of the server for as long.
const confirmed = 5 * time.Second

// discovery are the subjects by which services are listed.
const discovery = "$SRV.>"

// New returns who may say what.
func New(roles Roles) (*System, error) {
	all, serves, err := roles.byName()
	if err != nil {
		return nil, fmt.Errorf("NATS accounts: %w", err)
	}
	nodes := &Account{Name: NodeAccount, JetStream: true, User: User{Name: NodeName}}
	s := &System{Accounts: []*Account{nodes}}
	for _, r := range all {
		s.Accounts = append(s.Accounts, &Account{Name: accountOf(r), User: User{Name: r.name, Publish: []string{}},
			MaxConnections: DefaultMaxConnections, MaxSubscriptions: DefaultMaxSubscriptions})
	}
	for _, r := range all {
		own := s.account(accountOf(r))
		for _, endpoint := range r.serves {
			serve(nodes, own, endpoint)
		}
		for _, endpoint := range r.asks {
			s.ask(r, serves[endpoint], endpoint)
		}
		for _, collector := range r.collectors {
			own.request(nodes, wire.CollectSubject(collector), false, 0)
		}
		if r.tracks {
			own.request(nodes, "tranche.tracker.*", false, 0)
			if !r.views {
				own.hear(nodes, wire.EventSubject("tracker.>"), wire.EventSubject(">"))
			}
		}
		if r.views {
			s.view(own, all)
		}
	}
	return s, nil
}

func accountOf(r *role) string { return NodeAccount + "-" + r.name }

// serve gives a service what it needs for an endpoint, and the nodes what they need of it.
func serve(nodes, own *Account, endpoint string) {
	consume(nodes, own, wire.StreamWork, endpoint)
	consume(nodes, own, wire.StreamWork, wire.LaneOf(endpoint))
	own.request(nodes, wire.ReplySubject(endpoint), false, 0)
	own.request(nodes, wire.DeadSubject(endpoint), false, 0)
	state := "tranche.flow." + endpoint + ".>"
	own.request(nodes, state, false, 0)
	own.request(nodes, apiPrefix+"DIRECT.GET."+wire.StreamFlow+"."+state, false, 0)
	own.request(nodes, "tranche.call.*.*."+endpoint, false, 0) // of nodes that ask over core NATS

	nodes.request(own, wire.DirectSubject(endpoint), false, unanswered)
	nodes.request(own, wire.StatusSubject(endpoint), true, 0)
	nodes.request(own, discovery, true, 0)
}

// consume gives a service what it takes to read its consumer of a stream.
func consume(nodes, own *Account, stream, endpoint string) {
	consumer := stream + "." + wire.ConsumerName(endpoint)
	own.request(nodes, apiPrefix+"CONSUMER.INFO."+consumer, false, 0)
	own.request(nodes, apiPrefix+"CONSUMER.MSG.NEXT."+consumer, true, 0)
	own.request(nodes, fmt.Sprintf(ackSubjects, consumer), false, confirmed)
	own.request(nodes, fmt.Sprintf(longAckSubjects, consumer), false, confirmed)
}

// The subjects of acknowledgements are written out: with a > behind the consumer, one of the second form, which has a
// domain and an account before the stream, could be read as one of the first for another consumer, by the names of
// stream and consumer in the place of those. It would acknowledge and fetch for that one.
const (
	ackSubjects     = "$JS.ACK.%s.*.*.*.*.*"
	longAckSubjects = "$JS.ACK.*.*.%s.*.*.*.*.>"
)

// ask lets a role ask an endpoint, and the endpoint's service answer it.
func (s *System) ask(r, callee *role, endpoint string) {
	nodes, own, other := s.Accounts[0], s.account(accountOf(r)), s.account(accountOf(callee))
	own.request(nodes, wire.WorkSubject(endpoint), false, 0)
	own.request(nodes, wire.WorkSubject(wire.LaneOf(endpoint)), false, 0)
	if own != other {
		own.request(other, wire.StatusSubject(endpoint), true, 0) // whether it has a lane
		own.request(other, wire.DirectSubject(endpoint), false, unanswered)
		for _, caller := range r.callers() {
			other.request(own, "tranche.call."+caller+".*."+endpoint, false, 0)
		}
	} else {
		own.User.Publish = append(own.User.Publish, wire.DirectSubject(endpoint), wire.StatusSubject(endpoint))
	}
	for _, flow := range r.serves {
		consume(nodes, own, wire.StreamStage, flow)
		other.request(nodes, "tranche.stage."+flow+".*.*."+endpoint, false, 0)
	}
}

// view lets a role look and not touch.
func (s *System) view(own *Account, all []*role) {
	nodes := s.Accounts[0]
	consumers := []string{wire.StreamReply + "." + wire.RecorderConsumer,
		wire.StreamDead + "." + wire.DeadLetterConsumer}
	for _, r := range all {
		for _, endpoint := range r.serves {
			consumers = append(consumers, wire.StreamWork+"."+wire.ConsumerName(endpoint),
				wire.StreamWork+"."+wire.ConsumerName(wire.LaneOf(endpoint)))
			if len(r.asks) > 0 {
				consumers = append(consumers, wire.StreamStage+"."+wire.ConsumerName(endpoint))
			}
		}
	}
	questions := []string{"INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.INFO.*", "CONSUMER.NAMES.*", "CONSUMER.LIST.*"}
	for _, consumer := range consumers { // one by one: the exports of a JWT may not overlap
		questions = append(questions, "CONSUMER.INFO."+consumer)
	}
	for _, question := range questions {
		own.request(nodes, apiPrefix+question, false, 0)
	}
	own.hear(nodes, wire.EventSubject(">"), wire.EventSubject(">"))
	for _, r := range all {
		if service := s.account(accountOf(r)); len(r.serves) > 0 && service != own {
			own.request(service, discovery, true, 0)
		}
	}
}
