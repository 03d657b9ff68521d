package runs

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/workqueue/explain"
)

// sent refines a group whose requests are in the stream or with a service.
func (v *servicesSeen) sent(g *explain.MissingGroup) {
	switch g.Reason {
	case explain.ReasonQueued:
		v.queued(g)
	case explain.ReasonWorking, explain.ReasonPartly, explain.ReasonQuarantine:
		v.working(g)
	}
}

// queued refines requests that no service has taken.
func (v *servicesSeen) queued(g *explain.MissingGroup) {
	consumer, there := v.consumers[g.Endpoint], v.listeners[g.Endpoint]
	info := consumer.info
	switch {
	case consumer.missing:
		g.Reason, g.Owner, g.Who = explain.ReasonNoConsumer, explain.OwnerNode, "the node that leads"
		g.Why = "the consumer through which services take requests is gone"
		g.Next = "the node makes it again within seconds, and services go on"
	case info != nil && info.Paused:
		g.Reason, g.Owner, g.Who = explain.ReasonSuspended, explain.OwnerNode, "the node that leads"
		g.Why = fmt.Sprintf("somebody has paused the consumer of endpoint %s in NATS, for another %s", g.Endpoint,
			info.PauseRemaining.Round(time.Second))
		g.Next = "the node resumes it within seconds"
	case v.nobody(g.Endpoint):
		g.Reason, g.Owner, g.Who, g.When = explain.ReasonNoListener, explain.OwnerOperator, whoServes(g.Endpoint), nil
		g.Why = v.unheardText(g.Endpoint)
		g.Next = "the first service that listens takes them at once; until then their time does not run"
		g.Advice = v.startOrMend(g)
	case len(there) > 0 && able(there) == 0:
		g.Reason, g.Who = explain.ReasonNotTaking, v.listening(g.Endpoint)
		g.Why = "no instance can take anything: " + reasons(there)
		g.Next = "the first instance that can takes them"
		g.Advice = []explain.Advice{{Do: "see what keeps the services", Command: "tranche endpoints show " + g.Endpoint},
			startAdvice(g.Endpoint)}
	case info != nil && info.NumPending > 0:
		g.Reason, g.Who = explain.ReasonBusy, v.listening(g.Endpoint)
		g.Why = fmt.Sprintf("%d requests wait in the stream: the services have all that they can do at once",
			info.NumPending)
		v.busy(g)
		g.Advice = []explain.Advice{moreAdvice(g.Endpoint)}
	case info != nil && len(there) > 0: // nothing waits in the stream
		g.Reason, g.Why = explain.ReasonWorking, "a service has taken them"
		g.Next = "the service answers; without a reply by the deadline they are tried again"
		v.working(g)
	default:
		g.Who = v.listening(g.Endpoint)
	}
}

// busy says when the services will have answered a group that waits for them, at their present rate. The deadline of
// its requests, which moves until a service has them, is no time that anybody waits for.
func (v *servicesSeen) busy(g *explain.MissingGroup) {
	rate := v.rate(g.Endpoint)
	if rate <= 0 {
		g.Next, g.When = "the services take them in their order; they have answered nothing in the last minute", nil
		return
	}
	done := v.asOf.Add(takes(g, rate))
	g.Next = fmt.Sprintf("the services take them in their order, %s items a second over the last minute; the last about",
		perSecond(rate))
	g.When = &done
}

// rate is how many items the services of an endpoint answer in a second.
func (v *servicesSeen) rate(endpoint string) (rate float64) {
	for i := range v.listeners[endpoint] {
		rate += v.listeners[endpoint][i].Rate
	}
	return rate
}

// perSecond writes a rate.
func perSecond(rate float64) string {
	if rate >= 10 {
		return strconv.FormatFloat(rate, 'f', 0, 64)
	}
	return strconv.FormatFloat(rate, 'g', 2, 64)
}

// able counts the instances that can take requests.
func able(listeners []wire.Listener) (n int) {
	for i := range listeners {
		if state := listeners[i].State; state == wire.StateListening || state == "" {
			n++
		}
	}
	return n
}

// reasons says why instances cannot take requests, each reason once.
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
func (v *servicesSeen) working(g *explain.MissingGroup) {
	if g.Owner == explain.OwnerOperator {
		return // nobody is there to record what services answer
	}
	if v.nobody(g.Endpoint) {
		g.Reason, g.Owner, g.Who = explain.ReasonGone, explain.OwnerOperator, whoServes(g.Endpoint)
		g.Why += "; nobody listens on endpoint " + g.Endpoint + " any more, so the service that took them is gone"
		g.Next = fmt.Sprintf("JetStream hands them to the next service that listens, %s after the last sign of life; "+
			"without a reply by the deadline they are tried again", stream.AckWait)
		g.Advice = append([]explain.Advice{startAdvice(g.Endpoint)}, g.Advice...)
		return
	}
	g.Who = v.listening(g.Endpoint)
	if names := v.tellUnheard(g); len(names) > 0 && g.Reason == explain.ReasonWorking {
		g.Reason, g.Owner = explain.ReasonNested, explain.OwnerOperator
		g.Who = whoServes(strings.Join(names, ", "))
		g.Next = "the flow goes on when a service answers it; without a reply by the deadline they are tried again"
	}
}

// tellUnheard adds what the flow of a group asks for without being heard, and returns the names of those endpoints.
func (v *servicesSeen) tellUnheard(g *explain.MissingGroup) (names []string) {
	for _, ask := range v.unheard[g.Endpoint] {
		g.Why += fmt.Sprintf("; %s asks endpoint %s, on which nobody listens (%d waiting there)", g.Endpoint, ask.endpoint,
			ask.requests)
		names = append(names, ask.endpoint)
		g.Advice = append(g.Advice, startAdvice(ask.endpoint))
	}
	return names
}
