package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
)

type endpointsList struct{}

func (endpointsList) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	list, err := cl.ListEndpoints(ctx, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	return term.Printf("%s", endpointsText(list, term.Room()))
}

func endpointsText(list client.EndpointList, room int) string {
	if len(list.Endpoints) == 0 {
		return "no service listens and no run waits for one\n"
	}
	t := cli.Table{Right: map[int]bool{1: true, 2: true, 3: true, 4: true, 5: true, 6: true, 7: true}, Room: room}
	t.Row("ENDPOINT", "READY", "BACKLOG", "CALLS", "RATE", "P50", "P99", "ERRORS", "LISTENERS")
	for i := range list.Endpoints {
		e := &list.Endpoints[i]
		name, who := cli.Inert(e.Name), doers(e)
		if e.Pace != nil && e.Pace.Breaker == client.BreakerStateOpen {
			who += ", breaker open"
		}
		if cli.Narrow(room) {
			who = strings.Replace(who, doers(e), strconv.Itoa(len(e.Listeners)+len(e.Nodes)), 1)
		}
		t.Row(name, cli.Count(e.Ready), cli.Count(int64(e.Backlog)), cli.Count(int64(e.CallsBacklog)),
			cli.Rate(e.Rate), cli.PerItem(e.P50Millis), cli.PerItem(e.P99Millis), cli.Count(e.Errors), who)
	}
	return t.String()
}

// callsText says what waits of calls, where they are read apart from other requests.
func callsText(e *client.Endpoint) string {
	apart := func(l client.Listener) bool { return l.Lane }
	if !slices.ContainsFunc(e.Listeners, apart) && e.CallsBacklog == 0 && e.CallsProcessing == 0 {
		return "among the requests"
	}
	return fmt.Sprintf("%s waiting, %s taken; before other requests", cli.Count(int64(e.CallsBacklog)),
		cli.Count(int64(e.CallsProcessing)))
}

// doers says who does the work: instances of services, or nodes.
func doers(e *client.Endpoint) string {
	switch kind, _ := workqueue.TargetKind(e.Name); {
	case kind == workqueue.KindEndpoint:
		return listeners(e.Listeners)
	case len(e.Nodes) == 0:
		return "no node"
	case len(e.Nodes) == 1:
		return cli.Inert(e.Nodes[0])
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
		kind := cli.Inert(all[i].Service + " " + all[i].Version)
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	return fmt.Sprintf("%d: %s", len(all), strings.Join(kinds, ", "))
}

type endpointsShow struct {
	Name string `arg:"" help:"The endpoint's name."`
}

func (e *endpointsShow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	found, err := cl.GetEndpoint(ctx, e.Name, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	return term.Printf("%s%s%s", endpointHead(&found), instancesOf(&found, term.Room()),
		changesText(found.Changes, term.Room()))
}

func endpointHead(e *client.Endpoint) string {
	t := cli.Table{}
	kind, _ := workqueue.TargetKind(e.Name)
	t.Row("endpoint", cli.Inert(e.Name))
	if services := services(e.Listeners); len(services) > 0 {
		t.Row("service", strings.Join(services, ", "))
	}
	waiting := ""
	if e.Waiting > 0 {
		waiting = fmt.Sprintf(", %s wait for other steps or are held", cli.Count(e.Waiting))
	}
	t.Row("runs", fmt.Sprintf("%d: %s items ready, %s in flight, %s to be tried again%s", e.Runs, cli.Count(e.Ready),
		cli.Count(e.InFlight), cli.Count(e.Scheduled), waiting))
	if kind != workqueue.KindEndpoint {
		t.Row("done by", doers(e))
		paceRows(&t, e)
		return t.String()
	}
	t.Row("requests", fmt.Sprintf("%s waiting, %s taken", cli.Count(int64(e.Backlog)), cli.Count(int64(e.Processing))))
	t.Row("calls", callsText(e))
	concurrency := "left to the services"
	if e.Concurrency > 0 {
		concurrency = fmt.Sprintf("%d for each instance, set by an operator", e.Concurrency)
	}
	t.Row("concurrency", concurrency)
	t.Row("reads", fieldsText(e.Reads))
	t.Row("answers", fieldsText(e.Answers))
	paceRows(&t, e)
	t.Row("rate", cli.Rate(e.Rate))
	t.Row("one item", fmt.Sprintf("p50 %s, p99 %s", cli.PerItem(e.P50Millis), cli.PerItem(e.P99Millis)))
	t.Row("answered", fmt.Sprintf("%s items, %s of them with an error", cli.Count(e.Items), cli.Count(e.Errors)))
	return t.String()
}

// fieldsText lists the fields of a JSON Schema with their types.
func fieldsText(schema any) string {
	type property struct {
		Type any `json:"type"`
	}
	var said struct {
		property
		Properties map[string]property `json:"properties"`
		Required   []string            `json:"required"`
	}
	text, err := json.Marshal(schema)
	if err != nil || schema == nil || json.Unmarshal(text, &said) != nil {
		return "the service does not say"
	}
	var fields []string
	for _, name := range slices.Sorted(maps.Keys(said.Properties)) {
		field := name
		if kind := said.Properties[name].Type; kind != nil {
			field += fmt.Sprintf(" %v", kind)
		}
		if !slices.Contains(said.Required, name) {
			field += " (optional)"
		}
		fields = append(fields, cli.Inert(field))
	}
	if len(fields) == 0 {
		return cli.Inert(fmt.Sprintf("%v", cmp.Or(said.Type, any("anything"))))
	}
	return strings.Join(fields, ", ")
}

// services are the names of those who listen.
func services(all []client.Listener) []string {
	var names []string
	for i := range all {
		if name := cli.Inert(all[i].Service); !slices.Contains(names, name) {
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
		text.WriteString("\n" + cli.Inert(node))
	}
	return text.String() + "\n"
}

func instancesText(all []client.Listener, room int) string {
	if len(all) == 0 {
		return "\nnobody listens\n"
	}
	t := cli.Table{Right: map[int]bool{3: true, 4: true, 5: true, 6: true, 7: true}, Room: room}
	t.Row("INSTANCE", "VERSION", "HEALTH", "BUSY", "RATE", "P50", "P99", "ERRORS", "HOST")
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
		version := cli.Inert(l.Version)
		if several {
			version = cli.Inert(l.Service) + " " + version
		}
		t.Row(cli.Inert(l.Instance), version, health, busy, cli.Rate(l.Rate), cli.PerItem(l.P50Millis),
			cli.PerItem(l.P99Millis),
			cli.Count(l.Errors), cli.Inert(l.Host))
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
		notes = append(notes, "waits: "+cli.Inert(l.Reason))
	default: // it listens, and something is denied to it
		notes = append(notes, cli.Inert(l.Reason))
	}
	for _, n := range []struct {
		count int64
		what  string
	}{
		{l.Redelivered, "requests came again"}, {l.GivenUp, "given up"}, {l.Dead, "dead-lettered"},
		{l.Rebinds, "times its consumer was lost"},
	} {
		if n.count > 0 {
			notes = append(notes, cli.Count(n.count)+" "+n.what)
		}
	}
	if len(notes) == 0 {
		return ""
	}
	return fmt.Sprintf("  %s: %s\n", cli.Inert(l.Instance), strings.Join(notes, ", "))
}
