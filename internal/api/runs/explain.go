package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

func (s *Routes) registerExplain(api huma.API) {
	run := apicore.ReadsMany(apicore.Get("explain-run", "/runs/{run}/explain", "Why a run is not done"))
	run.Description = "The missing items in groups that add up, from one snapshot: how many, where they are, who they " +
		"wait for, since when, what will happen next, and what an operator could do. With item, the same for the " +
		"items of one key, with every attempt."
	apicore.Register(s.Core, api, run, s.explainRun)
	endpoint := apicore.ReadsMany(
		apicore.Get("explain-endpoint", "/endpoints/{name}/explain", "Why an endpoint makes no progress"))
	endpoint.Description = "The items of running runs that wait for the endpoint, in groups that add up."
	apicore.Register(s.Core, api, endpoint, s.explainEndpoint)
}

type explainInput struct {
	apicore.RunPath
	Item string `query:"item" doc:"the key of an item"`
}

func (s *Routes) explainRun(ctx context.Context, in *explainInput) (health.Explanation, error) {
	var e *health.Explanation
	var err error
	if in.Item != "" {
		e, err = health.New(s.Store).ExplainKey(ctx, in.ID, in.Item)
	} else {
		e, err = health.New(s.Store).Explain(ctx, in.ID)
	}
	if err != nil {
		return health.Explanation{}, err
	}
	if names := endpointsOf(e.Groups); len(names) > 0 {
		seen := s.lookAtServices(ctx, names, e.Nodes, e.At)
		seen.apply(e.Groups)
		e.ServicesAt = &seen.at
	}
	s.tellResting(e.Groups, e.Nodes <= 1, e.At)
	s.tellShort(e.Groups)
	e.Sum()
	e.MergeSteps()
	return *e, nil
}

func (s *Routes) explainEndpoint(ctx context.Context, in *apicore.EndpointPath) (health.EndpointExplanation, error) {
	if err := apicore.CheckTarget(&in.Endpoint); err != nil {
		return health.EndpointExplanation{}, err
	}
	e, err := health.New(s.Store).ExplainEndpoint(ctx, in.Endpoint)
	if err != nil {
		return health.EndpointExplanation{}, err
	}
	if kind, _ := workqueue.TargetKind(in.Endpoint); kind != workqueue.KindEndpoint {
		nodes, err := inspect.New(s.Store).NodesFor(ctx, in.Endpoint)
		e.Listens = "no live node does this work"
		if len(nodes) > 0 {
			e.Listens = "nodes do this work: " + strings.Join(nodes[:min(len(nodes), maxNamed)], ", ")
		}
		s.tellResting(e.Groups, e.Nodes <= 1, e.At)
		e.Sum()
		return *e, err
	}
	seen := s.lookAtServices(ctx, []string{in.Endpoint}, e.Nodes, e.At)
	seen.apply(e.Groups)
	e.ServicesAt, e.Listens = &seen.at, seen.listening(in.Endpoint)
	e.Sum()
	return *e, nil
}

func endpointsOf(groups []health.MissingGroup) []string {
	var names []string
	for i := range groups {
		if name := groups[i].Endpoint; IsEndpoint(name) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// IsEndpoint reports whether the name is an endpoint of services, not something that nodes call themselves.
func IsEndpoint(name string) bool {
	kind, _ := workqueue.TargetKind(name)
	return name != "" && kind == workqueue.KindEndpoint
}

// tellShort attributes items that only wait for the next claim to resources this node lacks, if any.
func (s *Routes) tellShort(groups []health.MissingGroup) {
	short := s.Short()
	for i := range groups {
		if g := &groups[i]; len(short) > 0 && (g.Reason == health.ReasonNext || g.Reason == health.ReasonSettingUp) {
			g.Reason, g.Owner, g.When = health.ResourceExhausted, health.OwnerOperator, nil
			g.Who = "an operator who frees what is used up"
			g.Why = short[0]
			g.Next = "a node claims them when it can"
		}
	}
}

// tellResting refines groups about to be claimed whose service asked this node to pause. Only this node knows: the
// others may not have been asked.
func (s *Routes) tellResting(groups []health.MissingGroup, alone bool, at time.Time) {
	if s.config.RestsUntil == nil {
		return
	}
	for i := range groups {
		g := &groups[i]
		until := s.config.RestsUntil(g.Endpoint)
		if g.Reason != health.ReasonNext || !until.After(at) {
			continue
		}
		g.Why += "; the service asked this node to wait (Retry-After) until " + until.UTC().Format("2006-01-02 15:04:05 UTC")
		if alone {
			g.Reason, g.Owner = health.ReasonThrottled, health.OwnerTimer
			g.Who, g.When = "the pause for an overloaded service", &until
			g.Next = "a node claims them and tries again"
		}
	}
}

type unheardAsk struct {
	endpoint string
	requests uint64 // waiting for it
}

const maxUnheard = 20

// lookForUnheard finds requests of flows to endpoints without listeners. The last request to each such endpoint names
// the caller. It skips what cannot be read now, because the result only adds to an explanation.
func (s *Routes) lookForUnheard(
	ctx context.Context, flows []string, listeners map[string][]wire.Listener,
) map[string][]unheardAsk {
	found := map[string][]unheardAsk{}
	ctx, cancel := context.WithTimeout(ctx, apicore.ListenWait)
	defer cancel()
	js, err := jetstream.New(s.NC)
	if err != nil {
		return found
	}
	stream, err := js.Stream(ctx, wire.StreamWork)
	if err != nil {
		return found
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(wire.WorkSubject("*")))
	if err != nil {
		return found
	}
	looked := 0
	for subject, requests := range info.State.Subjects {
		name, _ := wire.EndpointOf(strings.TrimPrefix(subject, wire.WorkSubject("")))
		if len(listeners[name]) > 0 || slices.Contains(flows, name) {
			continue
		}
		if looked++; looked > maxUnheard {
			break
		}
		msg, err := stream.GetLastMsgForSubject(ctx, subject)
		if err != nil {
			continue // answered meanwhile
		}
		for part := range strings.SplitSeq(msg.Header.Get(wire.HeaderStack), ",") {
			flow, _, _ := strings.Cut(part, ":")
			if slices.Contains(flows, flow) {
				found[flow] = append(found[flow], unheardAsk{name, requests})
				break
			}
		}
	}
	for _, asks := range found {
		slices.SortFunc(asks, func(a, b unheardAsk) int { return strings.Compare(a.endpoint, b.endpoint) })
	}
	return found
}

// servicesSeen is a snapshot of services and consumers, taken just after the snapshot of an explanation.
type servicesSeen struct {
	at        time.Time
	asOf      time.Time           // of the explanation, by the database's clock
	session   workqueue.SessionID // of this node
	alone     bool                // no other node is alive
	connected bool                // this node reaches NATS
	ready     bool                // and has its streams
	asked     bool                // discovery of listeners succeeded
	listeners map[string][]wire.Listener
	heard     []wire.Listener // the same, in order of answers
	consumers map[string]consumerSeen
	unheard   map[string][]unheardAsk // by flow: called endpoints without listeners
}

type consumerSeen struct {
	info    *jetstream.ConsumerInfo // nil: unknown
	missing bool
}

// lookAtServices discovers the endpoints' listeners, and what waits for them in JetStream.
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
	looking, cancel := context.WithTimeout(ctx, apicore.ListenWait)
	defer cancel()
	consumers := make(chan map[string]consumerSeen, 1)
	go func() { consumers <- s.lookAtConsumers(looking, names) }()
	listeners, err := wire.Discover(ctx, s.NC, apicore.ListenWait)
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

func (v *servicesSeen) flows(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return !slices.ContainsFunc(v.listeners[name], func(l wire.Listener) bool { return l.Stages > 0 })
	})
}

func (v *servicesSeen) apply(groups []health.MissingGroup) {
	for i := range groups {
		g := &groups[i]
		switch {
		case !IsEndpoint(g.Endpoint) || g.Owner == health.OwnerStep: // no services involved
		case g.Owner == health.OwnerNATS: // known for certain only when NATS is back
		case !v.connected:
			v.away(g)
		case g.State == "sent":
			v.sent(g)
		default:
			v.unsent(g)
		}
	}
}

func (v *servicesSeen) away(g *health.MissingGroup) {
	const cannot = "this node cannot reach NATS"
	if g.State == "sent" {
		if v.alone && g.Owner != health.OwnerOperator {
			g.Why += "; " + cannot + ", so replies wait until it does, and listeners cannot be looked up"
			g.Advice = append(g.Advice, health.NATS.Advice(""))
		}
		return
	}
	mine := g.State == "claimed" && g.Session() == v.session
	held := g.Owner == health.OwnerOperator || g.Reason == health.ReasonSampling
	timed := g.Owner == health.OwnerTimer && g.State == "scheduled"
	if held || timed || !mine && !v.alone || g.State == "claimed" && !mine {
		return
	}
	g.Say(health.ReasonNATSUnreachable, health.Row{"case": "here"})
	g.Advice = []health.Advice{health.NATS.Advice("")}
}

func (v *servicesSeen) unsent(g *health.MissingGroup) {
	node := g.Owner == health.OwnerNode && g.Reason != health.ReasonSampling
	if node && !v.ready && v.alone {
		advice := g.Advice
		g.Say(health.ReasonSettingUp, nil)
		g.Advice = advice
		return
	}
	if g.Behind() {
		v.behind(g)
	}
	if g.State == "scheduled" && g.Reason == health.ReasonBackoff {
		v.tellUnheard(g) // maybe the reason for the missing reply
	}
	if g.Owner != health.OwnerService || !v.unserved(g.Endpoint) {
		return
	}
	when := g.When
	g.Say(health.NoListeners, v.slip(g, health.Row{"behind": g.Why})) // more requests would find no listener either
	g.When = when
}

func (v *servicesSeen) slip(g *health.MissingGroup, row health.Row) health.Row {
	row["like"] = wire.Nearest(g.Endpoint, v.heard)
	row["owner"] = string(health.OwnerOperator)
	row["fix"] = row["like"] != "" && g.Runs <= 1
	return row
}

// behind refines a group that waits for requests in flight: how long these take, and that more would only wait in the
// stream.
func (v *servicesSeen) behind(g *health.MissingGroup) {
	if info := v.consumers[g.Endpoint].info; info != nil && info.NumPending > 0 && able(v.listeners[g.Endpoint]) > 0 {
		g.Why += "; more of them would only wait in the stream, as the services are at capacity"
		g.Advice = []health.Advice{health.ReasonBusy.AdviceFor(g)}
	}
	if rate := v.rate(g.Endpoint); rate > 0 {
		g.Next += fmt.Sprintf("; at %s, as over the last minute, these take another %s", health.PerSecond(rate, "item"),
			takes(g, rate).Round(time.Second))
	}
}

func takes(g *health.MissingGroup, rate float64) time.Duration {
	return time.Duration(float64(g.Items) / rate * float64(time.Second))
}

func (v *servicesSeen) unserved(endpoint string) bool {
	if !v.asked || len(v.listeners[endpoint]) > 0 {
		return false
	}
	info := v.consumers[endpoint].info
	return info == nil || info.NumWaiting == 0
}

const maxNamed = 3

func (v *servicesSeen) listening(endpoint string) string {
	there := v.listeners[endpoint]
	switch {
	case !v.connected || !v.asked:
		return "the services of endpoint " + endpoint + "; its listeners cannot be looked up, since NATS does not answer"
	case len(there) == 0 && v.unserved(endpoint):
		g := health.MissingGroup{Endpoint: endpoint}
		g.Say(health.NoListeners, v.slip(&g, health.Row{}))
		return g.Why
	case len(there) == 0:
		return "a service of endpoint " + endpoint + " that takes requests but does not say who it is"
	}
	var names []string
	holds := 0
	for i := range there {
		l := &there[i]
		holds += l.InFlight
		if i < maxNamed {
			name := l.Service + " " + apicore.Cut(l.Instance, 8)
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

func (v *servicesSeen) sent(g *health.MissingGroup) {
	switch g.Reason {
	case health.ReasonQueued:
		v.queued(g)
	case health.ReasonWorking, health.ReasonPartly, health.ReasonQuarantine:
		v.working(g)
	}
}

func (v *servicesSeen) queued(g *health.MissingGroup) {
	consumer, there := v.consumers[g.Endpoint], v.listeners[g.Endpoint]
	info := consumer.info
	switch {
	case consumer.missing:
		v.say(g, health.ReasonNoConsumer, nil)
	case info != nil && info.Paused:
		v.say(g, health.ReasonSuspended, health.Row{"pause": info.PauseRemaining.Round(time.Second)})
	case v.unserved(g.Endpoint):
		g.Say(health.NoListeners, v.slip(g, health.Row{}))
	case len(there) > 0 && able(there) == 0:
		v.say(g, health.ReasonNotTaking, health.Row{"reasons": reasons(there)})
	case info != nil && info.NumPending > 0:
		v.busy(g, info.NumPending)
	case info != nil && len(there) > 0: // nothing waits in the stream
		v.say(g, health.ReasonWorking, nil)
		v.working(g)
	default:
		g.Who = v.listening(g.Endpoint)
	}
}

func (v *servicesSeen) say(g *health.MissingGroup, k health.Kind, row health.Row) {
	when := g.When
	all := health.Row{"listens": v.listening(g.Endpoint)}
	maps.Copy(all, row)
	g.Say(k, all)
	g.When = when
}

// busy estimates when the services will have answered a waiting group, at their present rate. The deadline of its
// requests moves until a service has them, so it is not shown.
func (v *servicesSeen) busy(g *health.MissingGroup, waiting uint64) {
	row, when := health.Row{"waiting": waiting}, (*time.Time)(nil)
	if rate := v.rate(g.Endpoint); rate > 0 {
		done := v.asOf.Add(takes(g, rate))
		row["rate"], when = health.PerSecond(rate, "item"), &done
	}
	v.say(g, health.ReasonBusy, row)
	g.When = when
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
		reason := cmp.Or(l.Reason, "it gives no reason")
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

func (v *servicesSeen) working(g *health.MissingGroup) {
	if g.Owner == health.OwnerOperator {
		return // no node can record what services answer
	}
	if v.unserved(g.Endpoint) {
		advice := g.Advice
		v.say(g, health.ReasonGone, health.Row{"before": g.Why, "wait": stream.AckWait})
		g.Advice = append(g.Advice, advice...)
		return
	}
	g.Who = v.listening(g.Endpoint)
	if names := v.tellUnheard(g); len(names) > 0 && g.Reason == health.ReasonWorking {
		flow := *g
		g.Say(health.ReasonNested, health.Row{"asked": strings.Join(names, ", ")})
		g.Why, g.When, g.Advice = flow.Why, flow.When, flow.Advice
	}
}

func (v *servicesSeen) tellUnheard(g *health.MissingGroup) (names []string) {
	for _, ask := range v.unheard[g.Endpoint] {
		g.Why += fmt.Sprintf("; %s calls endpoint %s, which has no listener (%d waiting there)", g.Endpoint, ask.endpoint,
			ask.requests)
		names = append(names, ask.endpoint)
		asked := health.MissingGroup{Endpoint: ask.endpoint}
		g.Advice = append(g.Advice, health.NoListeners.AdviceFor(&asked))
	}
	return names
}
