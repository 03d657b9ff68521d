package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
)

type endpointsList struct{}

// Run lists endpoints.
func (endpointsList) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	list, err := cl.ListEndpoints(ctx, term.keep())
	if err != nil {
		return err
	}
	if term.json {
		return term.sent()
	}
	return term.printf("%s", endpointsText(list, term.room()))
}

func endpointsText(list client.EndpointList, room int) string {
	if len(list.Endpoints) == 0 {
		return "no service listens and no run waits for one\n"
	}
	t := table{right: map[int]bool{1: true, 2: true, 3: true, 4: true, 5: true, 6: true}, room: room}
	t.row("ENDPOINT", "READY", "BACKLOG", "RATE", "P50", "P99", "ERRORS", "LISTENERS")
	for i := range list.Endpoints {
		e := &list.Endpoints[i]
		name, who := inert(e.Name), doers(e)
		if e.Pace != nil && e.Pace.Breaker == client.BreakerStateOpen {
			who += ", breaker open"
		}
		if narrow(room) {
			name, who = short(name, 20), strings.Replace(who, doers(e), strconv.Itoa(len(e.Listeners)+len(e.Nodes)), 1)
		}
		t.row(name, count(e.Ready), count(int64(e.Backlog)), rate(e.Rate), perItem(e.P50Millis), perItem(e.P99Millis),
			count(e.Errors), who)
	}
	return t.String()
}

// doers says who does the work: instances of services, or nodes.
func doers(e *client.Endpoint) string {
	switch kind, _ := workqueue.TargetKind(e.Name); {
	case kind == workqueue.KindEndpoint:
		return listeners(e.Listeners)
	case len(e.Nodes) == 0:
		return "no node"
	case len(e.Nodes) == 1:
		return inert(e.Nodes[0])
	default:
		return fmt.Sprintf("%d nodes", len(e.Nodes))
	}
}

// listeners says how many there are, of which services.
func listeners(all []client.Listener) string {
	if len(all) == 0 {
		return "none"
	}
	var kinds []string
	for i := range all {
		kind := inert(all[i].Service + " " + all[i].Version)
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	return fmt.Sprintf("%d: %s", len(all), strings.Join(kinds, ", "))
}

type endpointsShow struct {
	Name string `arg:"" help:"The endpoint's name."`
}

// Run shows an endpoint.
func (e *endpointsShow) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	found, err := cl.GetEndpoint(ctx, e.Name, term.keep())
	if err != nil {
		return err
	}
	if term.json {
		return term.sent()
	}
	return term.printf("%s%s%s", endpointHead(&found), instancesOf(&found, term.room()),
		changesText(found.Changes, term.room()))
}

func endpointHead(e *client.Endpoint) string {
	t := table{}
	kind, _ := workqueue.TargetKind(e.Name)
	t.row("endpoint", inert(e.Name))
	if services := services(e.Listeners); len(services) > 0 {
		t.row("service", strings.Join(services, ", "))
	}
	waiting := ""
	if e.Waiting > 0 {
		waiting = fmt.Sprintf(", %s wait for other steps or are held", count(e.Waiting))
	}
	t.row("runs", fmt.Sprintf("%d: %s items ready, %s in flight, %s to be tried again%s", e.Runs, count(e.Ready),
		count(e.InFlight), count(e.Scheduled), waiting))
	if kind != workqueue.KindEndpoint {
		t.row("done by", doers(e))
		paceRows(&t, e)
		return t.String()
	}
	t.row("requests", fmt.Sprintf("%s waiting, %s taken", count(int64(e.Backlog)), count(int64(e.Processing))))
	concurrency := "left to the services"
	if e.Concurrency > 0 {
		concurrency = fmt.Sprintf("%d for each instance, set by an operator", e.Concurrency)
	}
	t.row("concurrency", concurrency)
	paceRows(&t, e)
	t.row("rate", rate(e.Rate))
	t.row("one item", fmt.Sprintf("p50 %s, p99 %s", perItem(e.P50Millis), perItem(e.P99Millis)))
	t.row("answered", fmt.Sprintf("%s items, %s of them with an error", count(e.Items), count(e.Errors)))
	return t.String()
}

// services are the names of those who listen.
func services(all []client.Listener) []string {
	var names []string
	for i := range all {
		if name := inert(all[i].Service); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// instancesOf lists who does the work.
func instancesOf(e *client.Endpoint, room int) string {
	if kind, _ := workqueue.TargetKind(e.Name); kind == workqueue.KindEndpoint {
		return instancesText(e.Listeners, room)
	}
	if len(e.Nodes) == 0 {
		return "\nno node that is alive does this\n"
	}
	var text strings.Builder
	for _, node := range e.Nodes {
		text.WriteString("\n" + inert(node))
	}
	return text.String() + "\n"
}

func instancesText(all []client.Listener, room int) string {
	if len(all) == 0 {
		return "\nnobody listens\n"
	}
	t := table{right: map[int]bool{3: true, 4: true, 5: true, 6: true, 7: true}, room: room}
	t.row("INSTANCE", "VERSION", "HEALTH", "BUSY", "RATE", "P50", "P99", "ERRORS", "HOST")
	several := len(services(all)) > 1
	var notes strings.Builder
	for i := range all {
		l := &all[i]
		health, busy := l.State, strconv.Itoa(l.InFlight)
		if health == "" {
			health = "-"
		}
		if l.Concurrency > 0 {
			busy = fmt.Sprintf("%d/%d", l.InFlight, l.Concurrency)
		}
		version := short(inert(l.Version), 16)
		if several {
			version = short(inert(l.Service), 16) + " " + version
		}
		t.row(short(inert(l.Instance), 8), version, health, busy, rate(l.Rate), perItem(l.P50Millis), perItem(l.P99Millis),
			count(l.Errors), inert(l.Host))
		notes.WriteString(instanceNotes(l))
	}
	return "\n" + t.String() + notes.String()
}

// instanceNotes says what stands out of an instance, in lines of their own.
func instanceNotes(l *client.Listener) string {
	var notes []string
	switch {
	case l.Reason == "":
	case l.State == string(wire.StateWaiting):
		notes = append(notes, "waits: "+inert(l.Reason))
	default: // it listens, and something is denied to it
		notes = append(notes, inert(l.Reason))
	}
	for _, n := range []struct {
		count int64
		what  string
	}{
		{l.Redelivered, "requests came again"}, {l.GivenUp, "given up"}, {l.Dead, "dead-lettered"},
		{l.Rebinds, "times its consumer was lost"},
	} {
		if n.count > 0 {
			notes = append(notes, count(n.count)+" "+n.what)
		}
	}
	if len(notes) == 0 {
		return ""
	}
	return fmt.Sprintf("  %s: %s\n", short(inert(l.Instance), 8), strings.Join(notes, ", "))
}
