package natsaccess

import (
	"fmt"
	"strings"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// unanswered limits how long the server remembers the reply mapping of a direct request: services answer elsewhere,
// and a no-responders error comes immediately.
const unanswered = time.Second

// confirmed limits how long the server remembers a client that waits for the confirmation of an acknowledgement.
// Nothing else is answered, and unanswered mappings stay in the server's memory that long.
const confirmed = 5 * time.Second

const discovery = "$SRV.>"

// New returns the accounts for the roles.
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

func serve(nodes, own *Account, endpoint string) {
	consume(nodes, own, wire.StreamWork, endpoint)
	consume(nodes, own, wire.StreamWork, wire.LaneOf(endpoint))
	own.request(nodes, wire.ReplySubject(endpoint), false, 0)
	own.request(nodes, wire.DeadSubject(endpoint), false, 0)
	own.request(nodes, wire.PartSubject(endpoint), false, 0)
	state := "tranche.flow." + endpoint + ".>"
	own.request(nodes, state, false, 0)
	own.request(nodes, apiPrefix+"DIRECT.GET."+wire.StreamFlow+"."+state, false, 0)
	own.request(nodes, "tranche.call.*.*."+endpoint, false, 0) // from nodes that call over core NATS

	nodes.request(own, wire.DirectSubject(endpoint), false, unanswered)
	nodes.request(own, wire.StatusSubject(endpoint), true, 0)
	nodes.request(own, discovery, true, 0)
}

func consume(nodes, own *Account, stream, endpoint string) {
	consumer := stream + "." + wire.ConsumerName(endpoint)
	own.request(nodes, apiPrefix+"CONSUMER.INFO."+consumer, false, 0)
	own.request(nodes, apiPrefix+"CONSUMER.MSG.NEXT."+consumer, true, 0)
	own.request(nodes, fmt.Sprintf(ackSubjects, consumer), false, confirmed)
	own.request(nodes, fmt.Sprintf(longAckSubjects, consumer), false, confirmed)
}

// The acknowledgement subjects are written out in full. With > after the consumer, a subject of the second form
// (domain and account before the stream) could match as the first form for another consumer, by suitable names of
// stream and consumer. It would acknowledge and fetch for that one.
const (
	ackSubjects     = "$JS.ACK.%s.*.*.*.*.*"
	longAckSubjects = "$JS.ACK.*.*.%s.*.*.*.*.>"
)

func (s *System) ask(r, callee *role, endpoint string) {
	nodes, own, other := s.Accounts[0], s.account(accountOf(r)), s.account(accountOf(callee))
	own.request(nodes, wire.WorkSubject(endpoint), false, 0)
	own.request(nodes, wire.WorkSubject(wire.LaneOf(endpoint)), false, 0)
	if own != other {
		own.request(other, wire.StatusSubject(endpoint), true, 0) // to check for a lane
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
	for _, consumer := range consumers { // one at a time: exports in a JWT must not overlap
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

// header is the start of a server's file. Storage and addresses are for the operator to change.
const header = `# Who may say what on NATS: docs/security.md. Made by "tranche nats config".
listen: 127.0.0.1:4222
jetstream { store_dir: /var/lib/nats, max_file_store: 20GB }
max_payload: 1MB

`

// Conf returns the server's configuration. Users have the given public keys by name or, without any, the passwords in
// the server's environment variables, see [Variable].
func (s *System) Conf(public map[string][]string) string {
	var b strings.Builder
	b.WriteString(header + "accounts {\n")
	for i, a := range s.Accounts {
		if i > 0 {
			b.WriteString("\n")
		}
		a.conf(&b, public)
	}
	b.WriteString("}\n")
	return b.String()
}

func (a *Account) conf(b *strings.Builder, public map[string][]string) {
	fmt.Fprintf(b, "  %q: {\n", a.Name)
	if a.JetStream {
		b.WriteString("    jetstream: enabled\n")
	}
	if a.MaxConnections > 0 {
		fmt.Fprintf(b, "    limits: { max_connections: %d, max_subscriptions: %d }\n", a.MaxConnections, a.MaxSubscriptions)
	}
	var users []string
	for _, identity := range a.User.identities(public) {
		users = append(users, fmt.Sprintf("{ %s%s }", identity, a.User.permissions()))
	}
	fmt.Fprintf(b, "    users: [ %s ]\n", strings.Join(users, ", "))
	section(b, "exports: [", "]", a.Exports, (*Export).conf)
	section(b, "imports: [", "]", a.Imports, Import.conf)
	section(b, "mappings: {", "}", a.Mappings, func(m Mapping) string { return fmt.Sprintf("%q: %q", m.From, m.To) })
	b.WriteString("  }\n")
}

func section[T any](b *strings.Builder, begin, end string, list []T, line func(T) string) {
	if len(list) == 0 {
		return
	}
	b.WriteString("    " + begin + "\n")
	for _, each := range list {
		b.WriteString("      " + line(each) + "\n")
	}
	b.WriteString("    " + end + "\n")
}

func (u User) identities(public map[string][]string) (all []string) {
	if public == nil {
		return []string{fmt.Sprintf("user: %s, password: $%s", u.Name, Variable(u.Name))}
	}
	for _, key := range public[u.Name] {
		all = append(all, "nkey: "+key)
	}
	return all
}

// permissions make the server report denied subjects to the client. The account is what actually protects them.
func (u User) permissions() string {
	if u.Publish == nil {
		return ""
	}
	var allow []string
	for _, subject := range u.Publish {
		allow = append(allow, fmt.Sprintf("%q", subject))
	}
	return fmt.Sprintf(", permissions: {\n      publish: { allow: [\n        %s\n      ] }\n"+
		"      allow_responses: { max: 1, expires: \"1m\" }\n    }", strings.Join(allow, ",\n        "))
}

func (e *Export) conf() string {
	var to []string
	for _, name := range e.To {
		to = append(to, fmt.Sprintf("%q", name))
	}
	kind, more := "service", ""
	if e.Stream {
		kind = "stream"
	}
	if e.Many {
		more = ", response_type: stream"
	}
	if e.Threshold > 0 {
		more += fmt.Sprintf(", response_threshold: %q", e.Threshold)
	}
	return fmt.Sprintf("{ %s: %q%s, accounts: [%s] }", kind, e.Subject, more, strings.Join(to, ", "))
}

func (i Import) conf() string {
	kind, local := "service", ""
	if i.Stream {
		kind = "stream"
	}
	if i.Local != "" {
		local = fmt.Sprintf(", to: %q", i.Local)
	}
	return fmt.Sprintf("{ %s: { account: %q, subject: %q }%s }", kind, i.Account, i.Subject, local)
}
