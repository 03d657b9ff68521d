package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/health"
)

// servicesSeen is what services and consumers were seen to do, a moment after the snapshot of an explanation.
type servicesSeen struct {
	at        time.Time
	asOf      time.Time           // of the explanation, by the database's clock
	session   workqueue.SessionID // of this node
	alone     bool                // no other node is alive
	connected bool                // this node reaches NATS
	ready     bool                // and has its streams
	asked     bool                // services could be asked who listens
	listeners map[string][]wire.Listener
	heard     []wire.Listener // the same, as they came
	consumers map[string]consumerSeen
	unheard   map[string][]unheardAsk // by flow: what it asks and no one answers
}

type consumerSeen struct {
	info    *jetstream.ConsumerInfo // nil: it could not be looked at
	missing bool
}

// lookAtServices asks who listens on the endpoints, and JetStream what waits for them.
func (s *Routes) lookAtServices(ctx context.Context, names []string, nodes int, asOf time.Time) *servicesSeen {
	seen := &servicesSeen{asOf: asOf, session: s.Node.Session(), alone: nodes <= 1, connected: s.NC.IsConnected(),
		listeners: map[string][]wire.Listener{}, consumers: map[string]consumerSeen{},
		unheard: map[string][]unheardAsk{}}
	select {
	case <-s.Node.Ready():
		seen.ready = true
	default:
	}
	defer func() { seen.at = time.Now() }()
	if !seen.connected {
		return seen
	}
	looking, cancel := context.WithTimeout(ctx, kernel.ListenWait)
	defer cancel()
	consumers := make(chan map[string]consumerSeen, 1)
	go func() { consumers <- s.lookAtConsumers(looking, names) }()
	listeners, err := wire.Discover(ctx, s.NC, kernel.ListenWait)
	seen.asked, seen.heard = err == nil, listeners
	seen.consumers = <-consumers
	for _, l := range listeners {
		seen.listeners[l.Endpoint] = append(seen.listeners[l.Endpoint], l)
	}
	if flows := seen.flows(names); len(flows) > 0 && seen.asked {
		seen.unheard = s.lookForUnheard(ctx, flows, seen.listeners)
	}
	return seen
}

func (s *Routes) lookAtConsumers(ctx context.Context, names []string) map[string]consumerSeen {
	all := map[string]consumerSeen{}
	js, err := jetstream.New(s.NC)
	if err != nil {
		return all
	}
	for _, name := range names {
		consumer, err := js.Consumer(ctx, wire.StreamWork, wire.ConsumerName(name))
		switch {
		case err == nil:
			all[name] = consumerSeen{info: consumer.CachedInfo()} // just fetched
		case errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, jetstream.ErrStreamNotFound):
			all[name] = consumerSeen{missing: true}
		}
	}
	return all
}

// flows are those of the endpoints whose handlers are cut into stages.
func (v *servicesSeen) flows(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return !slices.ContainsFunc(v.listeners[name], func(l wire.Listener) bool { return l.Stages > 0 })
	})
}

// apply refines what the database says of groups by what services do.
func (v *servicesSeen) apply(groups []health.MissingGroup) {
	for i := range groups {
		g := &groups[i]
		switch {
		case !IsEndpoint(g.Endpoint) || g.Owner == health.OwnerStep: // services do not come into it
		case g.Owner == health.OwnerNATS: // who listens can be told for certain when it is there again
		case !v.connected:
			v.away(g)
		case g.State == "sent":
			v.sent(g)
		default:
			v.unsent(g)
		}
	}
}

// away refines a group while this node cannot reach NATS.
func (v *servicesSeen) away(g *health.MissingGroup) {
	const cannot = "this node cannot reach NATS"
	if g.State == "sent" {
		if v.alone && g.Owner != health.OwnerOperator {
			g.Why += "; " + cannot + ", so replies wait until it does, and who listens cannot be told"
			g.Advice = append(g.Advice, health.NATSAdvice())
		}
		return
	}
	mine := g.State == "claimed" && g.Session() == v.session
	held := g.Owner == health.OwnerOperator || g.Reason == health.ReasonSampling
	timed := g.Owner == health.OwnerTimer && g.State == "scheduled"
	if held || timed || !mine && !v.alone || g.State == "claimed" && !mine {
		return
	}
	g.Reason, g.Owner, g.Who, g.When = health.ReasonNATSUnreachable, health.OwnerNode, "this node", nil
	g.Why = cannot + ", so nothing is sent at the moment"
	g.Next = "it connects again by itself as soon as NATS answers, and they go on at once"
	g.Advice = []health.Advice{health.NATSAdvice()}
}

// unsent refines a group that waits for a node or for requests that are out.
func (v *servicesSeen) unsent(g *health.MissingGroup) {
	node := g.Owner == health.OwnerNode && g.Reason != health.ReasonSampling
	if node && !v.ready && v.alone {
		g.Reason, g.Who, g.When = health.ReasonSettingUp, "this node", nil
		g.Why = "it has no streams yet: it makes them as soon as NATS and PostgreSQL answer"
		g.Next = "they go on at once when it has"
		return
	}
	if g.Behind() {
		v.behind(g)
	}
	if g.State == "scheduled" && g.Reason == health.ReasonBackoff {
		v.tellUnheard(g) // that may be why no reply came
	}
	if g.Owner != health.OwnerService || !v.nobody(g.Endpoint) {
		return
	}
	g.Reason, g.Owner, g.Who = health.ReasonNoListener, health.OwnerOperator, whoServes(g.Endpoint)
	g.Why = v.unheardText(g.Endpoint) + ": " + g.Why
	g.Next = "they are sent when a service listens and answers the requests that are out"
	g.Advice = v.startOrMend(g) // more requests out would find no one either
}

func (v *servicesSeen) unheardText(endpoint string) string {
	text := "no one listens on endpoint " + endpoint
	if near := wire.Nearest(endpoint, v.heard); near != "" {
		text += "; was " + near + " meant?"
	}
	return text
}

// startOrMend is what helps when no one listens: to start a service, or, where the name has a slip, to fix that.
func (v *servicesSeen) startOrMend(g *health.MissingGroup) []health.Advice {
	all := []health.Advice{startAdvice(g.Endpoint)}
	if near := wire.Nearest(g.Endpoint, v.heard); near != "" && g.Runs <= 1 {
		all = append(all, health.Advice{
			Do:      "or, if " + near + " was meant, cancel the run and start it again with that name",
			Command: "tranche run cancel " + g.Run().String(),
		})
	}
	return all
}

// behind refines a group that waits for requests that are out: how long its own take, and that more of them would only
// wait in the stream.
func (v *servicesSeen) behind(g *health.MissingGroup) {
	if info := v.consumers[g.Endpoint].info; info != nil && info.NumPending > 0 && able(v.listeners[g.Endpoint]) > 0 {
		g.Why += "; more of them would only wait in the stream, as the services have all that they can do at once"
		g.Advice = []health.Advice{moreAdvice(g.Endpoint)}
	}
	if rate := v.rate(g.Endpoint); rate > 0 {
		g.Next += fmt.Sprintf("; at %s, as over the last minute, these take another %s", health.PerSecond(rate, "item"),
			takes(g, rate).Round(time.Second))
	}
}

func takes(g *health.MissingGroup, rate float64) time.Duration {
	return time.Duration(float64(g.Items) / rate * float64(time.Second))
}

func moreAdvice(endpoint string) health.Advice {
	return health.Advice{Do: "start more instances, or let each do more at once",
		Command: "tranche endpoints set " + endpoint + " --concurrency N"}
}

func whoServes(endpoint string) string { return "whoever runs the services of endpoint " + endpoint }

func startAdvice(endpoint string) health.Advice {
	return health.Advice{Do: "start a service that listens on endpoint " + endpoint +
		"; it is there when this names it", Command: "tranche endpoints show " + endpoint}
}

// nobody reports whether it is known that no service takes requests for an endpoint.
func (v *servicesSeen) nobody(endpoint string) bool {
	if !v.asked || len(v.listeners[endpoint]) > 0 {
		return false
	}
	info := v.consumers[endpoint].info
	return info == nil || info.NumWaiting == 0
}

const maxNamed = 3

// listening says who listens on an endpoint.
func (v *servicesSeen) listening(endpoint string) string {
	there := v.listeners[endpoint]
	switch {
	case !v.connected || !v.asked:
		return "the services of endpoint " + endpoint + "; who listens cannot be told now, since NATS does not answer"
	case len(there) == 0 && v.nobody(endpoint):
		return v.unheardText(endpoint)
	case len(there) == 0:
		return "a service of endpoint " + endpoint + " that takes requests but does not say who it is"
	}
	var names []string
	holds := 0
	for i := range there {
		l := &there[i]
		holds += l.InFlight
		if i < maxNamed {
			name := l.Service + " " + kernel.Cut(l.Instance, 8)
			if l.Host != "" {
				name += " on " + l.Host
			}
			names = append(names, fmt.Sprintf("%s (holds %d)", name, l.InFlight))
		}
	}
	if len(there) > maxNamed {
		return fmt.Sprintf("%d instances, which hold %d requests: %s, …", len(there), holds, strings.Join(names, ", "))
	}
	return strings.Join(names, ", ")
}

// sent refines a group whose requests are in the stream or with a service.
func (v *servicesSeen) sent(g *health.MissingGroup) {
	switch g.Reason {
	case health.ReasonQueued:
		v.queued(g)
	case health.ReasonWorking, health.ReasonPartly, health.ReasonQuarantine:
		v.working(g)
	}
}

// queued refines requests that no service has taken.
func (v *servicesSeen) queued(g *health.MissingGroup) {
	consumer, there := v.consumers[g.Endpoint], v.listeners[g.Endpoint]
	info := consumer.info
	switch {
	case consumer.missing:
		g.Reason, g.Owner, g.Who = health.ReasonNoConsumer, health.OwnerNode, "the leader"
		g.Why = "the consumer through which services take requests is gone"
		g.Next = "the node makes it again within seconds, and services go on"
	case info != nil && info.Paused:
		g.Reason, g.Owner, g.Who = health.ReasonSuspended, health.OwnerNode, "the leader"
		g.Why = fmt.Sprintf("someone has paused the consumer of endpoint %s in NATS, for another %s", g.Endpoint,
			info.PauseRemaining.Round(time.Second))
		g.Next = "the node resumes it within seconds"
	case v.nobody(g.Endpoint):
		g.Reason, g.Owner, g.Who, g.When = health.ReasonNoListener, health.OwnerOperator, whoServes(g.Endpoint), nil
		g.Why = v.unheardText(g.Endpoint)
		g.Next = "the first service that listens takes them at once; until then their time does not run"
		g.Advice = v.startOrMend(g)
	case len(there) > 0 && able(there) == 0:
		g.Reason, g.Who = health.ReasonNotTaking, v.listening(g.Endpoint)
		g.Why = "no instance can take anything: " + reasons(there)
		g.Next = "the first instance that can takes them"
		g.Advice = []health.Advice{{Do: "see what keeps the services", Command: "tranche endpoints show " + g.Endpoint},
			startAdvice(g.Endpoint)}
	case info != nil && info.NumPending > 0:
		g.Reason, g.Who = health.ReasonBusy, v.listening(g.Endpoint)
		g.Why = fmt.Sprintf("%d requests wait in the stream: the services have all that they can do at once",
			info.NumPending)
		v.busy(g)
		g.Advice = []health.Advice{moreAdvice(g.Endpoint)}
	case info != nil && len(there) > 0: // nothing waits in the stream
		g.Reason, g.Why = health.ReasonWorking, "a service has taken them"
		g.Next = "the service answers; without a reply by the deadline they are retried"
		v.working(g)
	default:
		g.Who = v.listening(g.Endpoint)
	}
}

// busy says when the services will have answered a group that waits for them, at their present rate. The deadline of
// its requests, which moves until a service has them, is no time that anybody waits for.
func (v *servicesSeen) busy(g *health.MissingGroup) {
	rate := v.rate(g.Endpoint)
	if rate <= 0 {
		g.Next, g.When = "the services take them in their order; they have answered nothing in the last minute", nil
		return
	}
	done := v.asOf.Add(takes(g, rate))
	g.Next = fmt.Sprintf("the services take them in their order, %s over the last minute; the last about",
		health.PerSecond(rate, "item"))
	g.When = &done
}

func (v *servicesSeen) rate(endpoint string) (rate float64) {
	for i := range v.listeners[endpoint] {
		rate += v.listeners[endpoint][i].Rate
	}
	return rate
}

func able(listeners []wire.Listener) (n int) {
	for i := range listeners {
		if state := listeners[i].State; state == wire.StateListening || state == "" {
			n++
		}
	}
	return n
}

func reasons(listeners []wire.Listener) string {
	var all []string
	for i := range listeners {
		l := &listeners[i]
		reason := cmp.Or(l.Reason, "it says no more")
		if l.State == wire.StateDraining {
			reason = "it is stopping"
		}
		if reason = string(l.State) + ", " + reason; !slices.Contains(all, reason) {
			all = append(all, reason)
		}
	}
	return strings.Join(all[:min(len(all), maxReasons)], "; ")
}

const maxReasons = 3

// working refines requests that a service has taken.
func (v *servicesSeen) working(g *health.MissingGroup) {
	if g.Owner == health.OwnerOperator {
		return // no one is there to record what services answer
	}
	if v.nobody(g.Endpoint) {
		g.Reason, g.Owner, g.Who = health.ReasonGone, health.OwnerOperator, whoServes(g.Endpoint)
		g.Why += "; no one listens on endpoint " + g.Endpoint + " any more, so the service that took them is gone"
		g.Next = fmt.Sprintf("JetStream hands them to the next service that listens, %s after the last heartbeat; "+
			"without a reply by the deadline they are retried", stream.AckWait)
		g.Advice = append([]health.Advice{startAdvice(g.Endpoint)}, g.Advice...)
		return
	}
	g.Who = v.listening(g.Endpoint)
	if names := v.tellUnheard(g); len(names) > 0 && g.Reason == health.ReasonWorking {
		g.Reason, g.Owner = health.ReasonNested, health.OwnerOperator
		g.Who = whoServes(strings.Join(names, ", "))
		g.Next = "the flow goes on when a service answers it; without a reply by the deadline they are retried"
	}
}

// tellUnheard adds what the flow of a group asks for without being heard, and returns the names of those endpoints.
func (v *servicesSeen) tellUnheard(g *health.MissingGroup) (names []string) {
	for _, ask := range v.unheard[g.Endpoint] {
		g.Why += fmt.Sprintf("; %s asks endpoint %s, on which no one listens (%d waiting there)", g.Endpoint, ask.endpoint,
			ask.requests)
		names = append(names, ask.endpoint)
		g.Advice = append(g.Advice, startAdvice(ask.endpoint))
	}
	return names
}
