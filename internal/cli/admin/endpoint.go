package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
)

type endpointCommands struct {
	List    endpointsList    `cmd:"" default:"1" help:"List endpoints: backlog, rate, time for an item, errors, listeners."`
	Show    endpointsShow    `cmd:"" help:"Show an endpoint, with each instance that listens on it."`
	Explain endpointsExplain `cmd:"" help:"Explain why an endpoint is stalled."`
	Set     endpointsSet     `cmd:"" help:"Change an endpoint's concurrency, budget or rate while its services run."`
}

type deadLetterCommands struct {
	List    dlqList    `cmd:"" help:"List dead letters, newest first."`
	Show    dlqShow    `cmd:"" help:"Show a dead letter: its cause, its headers and its body."`
	Requeue dlqRequeue `cmd:"" help:"Send dead letters to their endpoints again."`
	Drop    dlqDrop    `cmd:"" help:"Drop dead letters; their bodies are deleted."`
}

type quarantineCommands struct {
	List quarantineList `cmd:"" help:"List messages that could not be taken, newest first."`
	Show quarantineShow `cmd:"" help:"Show a message that could not be taken: why, its headers and its body."`
}

type endpointsList struct{}

func (endpointsList) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	list, err := cl.ListEndpoints(ctx)
	return (&cli.List[client.Endpoint]{
		Columns: "ENDPOINT|READY>|BACKLOG>|CALLS>|RATE>|P50>|P99>|ERRORS>|LISTENERS",
		Row: func(e *client.Endpoint) []any {
			who := doers(e)
			if cli.Narrow(term.Room()) {
				who = strconv.Itoa(len(e.Listeners) + len(e.Nodes))
			}
			if e.Pace != nil && e.Pace.Breaker == client.BreakerStateOpen {
				who += ", breaker open"
			}
			return []any{e.Name, e.Ready, e.Backlog, e.CallsBacklog, cli.Rate(e.Rate), cli.PerItem(e.P50Millis),
				cli.PerItem(e.P99Millis), e.Errors, who}
		},
		Empty: "no service listens and no run waits for one",
	}).Print(term, list.Endpoints, err)
}

func callsText(e *client.Endpoint) string {
	apart := func(l client.Listener) bool { return l.Lane }
	if !slices.ContainsFunc(e.Listeners, apart) && e.CallsBacklog == 0 && e.CallsProcessing == 0 {
		return "among the requests"
	}
	return fmt.Sprintf("%s waiting, %s taken; before other requests", cli.Count(int64(e.CallsBacklog)),
		cli.Count(int64(e.CallsProcessing)))
}

func doers(e *client.Endpoint) string {
	switch kind, _ := workqueue.TargetKind(e.Name); {
	case kind == workqueue.KindEndpoint:
		return listeners(e.Listeners)
	case len(e.Nodes) == 0:
		return "no node"
	case len(e.Nodes) == 1:
		return cli.EscapeControl(e.Nodes[0])
	default:
		return fmt.Sprintf("%d nodes", len(e.Nodes))
	}
}

func listeners(all []client.Listener) string {
	if len(all) == 0 {
		return "none"
	}
	return fmt.Sprintf("%d: %s", len(all), strings.Join(services(all, true), ", "))
}

func services(all []client.Listener, versions bool) []string {
	var names []string
	for i := range all {
		name := all[i].Service
		if versions {
			name += " " + all[i].Version
		}
		if name = cli.EscapeControl(name); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

type endpointName struct {
	Name string `arg:"" help:"The endpoint's name."`
}

type endpointsShow struct{ endpointName }

func (e *endpointsShow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Print(term, func(e *client.Endpoint, room int) string {
		return endpointHead(e) + instancesOf(e, room) + changesText(e.Changes, room)
	})(cl.GetEndpoint(ctx, e.Name))
}

func endpointHead(e *client.Endpoint) string {
	t := cli.Table{}
	t.Row("endpoint", e.Name)
	t.Field("service", strings.Join(services(e.Listeners, false), ", "))
	waiting := ""
	if e.Waiting > 0 {
		waiting = fmt.Sprintf(", %s wait for other steps or are held", cli.Count(e.Waiting))
	}
	t.Row("runs", fmt.Sprintf("%d: %s items ready, %s in flight, %s to be retried%s", e.Runs, cli.Count(e.Ready),
		cli.Count(e.InFlight), cli.Count(e.Scheduled), waiting))
	if kind, _ := workqueue.TargetKind(e.Name); kind != workqueue.KindEndpoint {
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
		fields = append(fields, cli.EscapeControl(field))
	}
	if len(fields) == 0 {
		return cli.EscapeControl(fmt.Sprintf("%v", cmp.Or(said.Type, any("anything"))))
	}
	return strings.Join(fields, ", ")
}

func instancesOf(e *client.Endpoint, room int) string {
	if kind, _ := workqueue.TargetKind(e.Name); kind == workqueue.KindEndpoint {
		return instancesText(e.Listeners, room)
	}
	if len(e.Nodes) == 0 {
		return "\nno node that is alive does this\n"
	}
	return "\n" + cli.InertText(strings.Join(e.Nodes, "\n")) + "\n"
}

func instancesText(all []client.Listener, room int) string {
	if len(all) == 0 {
		return "\nnobody listens\n"
	}
	several := len(services(all, false)) > 1
	var notes strings.Builder
	list := cli.List[client.Listener]{
		Columns: "INSTANCE|VERSION|HEALTH|BUSY>|RATE>|P50>|P99>|ERRORS>|HOST",
		Row: func(l *client.Listener) []any {
			notes.WriteString(instanceNotes(l))
			busy, version := strconv.Itoa(l.InFlight), l.Version
			if l.Concurrency > 0 {
				busy = fmt.Sprintf("%d/%d", l.InFlight, l.Concurrency)
			}
			if several {
				version = l.Service + " " + version
			}
			return []any{l.Instance, version, cli.OrDash(l.State), busy, cli.Rate(l.Rate), cli.PerItem(l.P50Millis),
				cli.PerItem(l.P99Millis), l.Errors, l.Host}
		},
	}
	return "\n" + list.Text(all, room) + notes.String()
}

func instanceNotes(l *client.Listener) string {
	var notes []string
	switch {
	case l.Reason == "":
	case l.State == string(wire.StateWaiting):
		notes = append(notes, "waits: "+l.Reason)
	default: // it is listening, and something is denied to it
		notes = append(notes, l.Reason)
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
	return "  " + cli.EscapeControl(l.Instance+": "+strings.Join(notes, ", ")) + "\n"
}

type endpointsExplain struct{ endpointName }

func (e *endpointsExplain) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Print(term, cli.EndpointExplanationText)(cl.ExplainEndpoint(ctx, e.Name))
}

func paceRows(t *cli.Table, e *client.Endpoint) {
	limits := []string{budgetText(e.MaxInFlight), rateLimitText(e.RateLimit)}
	if e.RequestRate > 0 {
		limits = append(limits, requestRateText(e.RequestRate))
	}
	t.Row("limits", strings.Join(limits, ", "))
	p := e.Pace
	if p == nil {
		t.Row("pace", "nodes have not had to find one yet")
		return
	}
	t.Row("pace", learnedText(p))
	breaker := "closed"
	if p.Breaker == client.BreakerStateOpen {
		breaker = "OPEN: " + cli.EscapeControl(p.BreakerReason)
		if p.BreakerSince != nil {
			breaker += ", since " + cli.Moment(*p.BreakerSince)
		}
		if p.ProbeAt != nil {
			breaker += fmt.Sprintf("; %d probes so far, the next at %s", p.Probes, cli.Moment(*p.ProbeAt))
		}
	}
	t.Row("breaker", breaker)
}

func learnedText(p *client.PaceView) string {
	parts := []string{fmt.Sprintf("%d requests out, %d are good", p.RequestsOut, p.InFlight)}
	if p.Rate != nil {
		parts = append(parts, "takes "+cli.Rate(*p.Rate))
	}
	if p.Chunk != nil {
		parts = append(parts, fmt.Sprintf("chunks of %d do best", *p.Chunk))
	}
	if p.ChunkCap != nil && p.ChunkCapUntil != nil {
		parts = append(parts, fmt.Sprintf("chunks over %d fail (until %s)", *p.ChunkCap, cli.Moment(*p.ChunkCapUntil)))
	}
	return strings.Join(parts, ", ")
}

func changesText(changes []client.PastPace, room int) string {
	if len(changes) == 0 {
		return ""
	}
	list := cli.List[client.PastPace]{Columns: "CHANGED|WHAT|FROM|TO|WHY", Row: func(c *client.PastPace) []any {
		return []any{c.At, strings.ReplaceAll(c.What, "_", " "), cli.OrDash(c.Before), cli.OrDash(c.After), c.Reason}
	}}
	return "\n" + list.Text(changes, room)
}

type endpointsSet struct {
	Name        string       `arg:"" help:"The endpoint's name. It need not be known yet."`
	Concurrency *int         `type:"limit" off:"default" within:"1,1024" help:"Concurrent chunks in each instance, 1 to 1024, or default." placeholder:"N"`
	MaxInFlight *int         `type:"limit" off:"none" within:"1,10000" help:"Requests in flight over all runs, 1 to 10000, or none." placeholder:"N"`
	Rate        *float64     `type:"limit" off:"none" within:"0.001,10000000" like:"items a second from" help:"Items a second over all runs, or none." placeholder:"N"`
	RequestRate *requestRate `type:"limit" off:"none" like:"a rate of requests like 10/s, 50/m or 100/h" help:"Requests over all runs and collectors, as 50/m or 10/s, or none." placeholder:"N/m"`
	ChunkCap    string       `enum:",0" default:"" help:"0 forgets above which size whole requests fail; nodes find the cap automatically." placeholder:"0"`
	Breaker     string       `enum:",closed" default:"" help:"closed says that it is no outage: for 10 minutes failures use up attempts. Nodes open it by themselves." placeholder:"closed"`
}

type requestRate float64

func (r *requestRate) UnmarshalText(text []byte) error {
	n, err := collector.ParseRequestRate(string(text))
	*r = requestRate(n)
	return err
}

func (e *endpointsSet) Validate() error {
	if *e == (endpointsSet{Name: e.Name}) {
		return errors.New("say what to set: --concurrency, --max-in-flight, --rate, --request-rate, --chunk-cap 0 or " +
			"--breaker closed")
	}
	return nil
}

func (e *endpointsSet) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	set := client.EndpointSettings{Concurrency: e.Concurrency, MaxInFlight: e.MaxInFlight, Rate: e.Rate,
		RequestRate: (*float64)(e.RequestRate)}
	if e.ChunkCap != "" {
		set.ChunkCap = new(int)
	}
	if e.Breaker != "" {
		set.Breaker = &e.Breaker
	}
	return cli.Say(term, func(set *client.EndpointSetting) string {
		return "endpoint " + cli.EscapeControl(e.Name) + ": " + strings.Join(e.told(set), "; ")
	})(cl.SetEndpoint(ctx, e.Name, set))
}

func (e *endpointsSet) told(set *client.EndpointSetting) []string {
	concurrency := "concurrency is left to its services"
	if set.Concurrency > 0 {
		concurrency = fmt.Sprintf("%d concurrent chunks in each instance", set.Concurrency)
	}
	var told []string
	for _, part := range []struct {
		given bool
		text  string
	}{
		{e.Concurrency != nil, concurrency + ", within seconds"}, {e.MaxInFlight != nil, budgetText(set.MaxInFlight)},
		{e.Rate != nil, rateLimitText(set.Rate)}, {e.RequestRate != nil, requestRateText(set.RequestRate)},
		{e.ChunkCap != "", "requests may be of any size again"},
		{e.Breaker != "", "its breaker is closed, and stays so for 10 minutes: items that fail use up their attempts"},
	} {
		if part.given {
			told = append(told, part.text)
		}
	}
	return told
}

func budgetText(n int) string {
	if n == 0 {
		return "no budget of requests"
	}
	return fmt.Sprintf("at most %s requests in flight over all runs", cli.Count(int64(n)))
}

func rateLimitText(perSecond float64) string {
	if perSecond <= 0 {
		return "no rate limit"
	}
	return fmt.Sprintf("at most %s items a second over all runs", cli.Pace(perSecond))
}

func requestRateText(perSecond float64) string {
	switch {
	case perSecond <= 0:
		return "no limit of requests a second"
	case perSecond < 1:
		return fmt.Sprintf("at most %s requests a minute in all", strconv.FormatFloat(perSecond*60, 'g', 4, 64))
	case perSecond == 1:
		return "at most 1 request a second in all"
	}
	return fmt.Sprintf("at most %s requests a second in all", strconv.FormatFloat(perSecond, 'g', 4, 64))
}
