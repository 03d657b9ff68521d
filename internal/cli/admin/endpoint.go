package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
)

type endpointCommands struct {
	List    endpointsList    `cmd:"" default:"1" help:"List endpoints: backlog, rate, time for an item, errors, listeners."`
	Show    endpointsShow    `cmd:"" help:"Show an endpoint, with each instance that listens on it."`
	Explain endpointsExplain `cmd:"" help:"Explain why an endpoint is stalled."`
	Canary  endpointsCanary  `cmd:"" help:"Send a share of an endpoint's requests to a new version, or all or none."`
	Set     endpointsSet     `cmd:"" help:"Change an endpoint's concurrency, budget or rate while its services run."`
}

type deadLetterCommands struct {
	List    dlqList    `cmd:"" help:"List dead letters, newest first."`
	Show    dlqShow    `cmd:"" help:"Show a dead letter: its cause, its headers and its body."`
	Requeue dlqRequeue `cmd:"" help:"Send dead letters to their endpoints again."`
	Drop    dlqDrop    `cmd:"" help:"Drop dead letters; their bodies are deleted."`
}

type quarantineCommands struct {
	List quarantineList `cmd:"" help:"List unreadable messages, newest first."`
	Show quarantineShow `cmd:"" help:"Show an unreadable message: why, its headers and its body."`
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
			open := e.Pace != nil && e.Pace.Breaker == client.BreakerStateOpen
			return []any{e.Name, e.Ready, e.Backlog, e.CallsBacklog, cli.Rate(e.Rate), cli.PerItem(e.P50Millis),
				cli.PerItem(e.P99Millis), e.Errors, who + cli.If(open, ", breaker open")}
		},
		Empty: "no service listens and no run waits for one",
	}).Print(term, list.Endpoints, err)
}

func callsText(e *client.Endpoint) string {
	apart := func(l client.Listener) bool { return l.Lane }
	if !slices.ContainsFunc(e.Listeners, apart) && e.CallsBacklog == 0 && e.CallsProcessing == 0 {
		return "among the requests"
	}
	return cli.Text("%v waiting, %v taken; before other requests", e.CallsBacklog, e.CallsProcessing)
}

func doers(e *client.Endpoint) string {
	switch {
	case served(e) && len(e.Listeners) == 0:
		return "none"
	case served(e):
		return fmt.Sprintf("%d: %s", len(e.Listeners), strings.Join(services(e.Listeners, true), ", "))
	case len(e.Nodes) == 0:
		return "no node"
	case len(e.Nodes) == 1:
		return cli.EscapeControl(e.Nodes[0])
	default:
		return fmt.Sprintf("%d nodes", len(e.Nodes))
	}
}

// served reports whether services listen on an endpoint; nodes do the work of the rest.
func served(e *client.Endpoint) bool {
	kind, _ := workqueue.TargetKind(e.Name)
	return kind == workqueue.KindEndpoint
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
		return endpointHead(e) + canaryText(e.Canary, room) + instancesOf(e, room) + changesText(e.Changes, room)
	})(cl.GetEndpoint(ctx, e.Name))
}

func endpointHead(e *client.Endpoint) string {
	t := cli.Table{}
	t.Row("endpoint", e.Name)
	t.Field("service", strings.Join(services(e.Listeners, false), ", "))
	t.Say("runs", "%v: %v items ready, %v in flight, %v to be retried%v", e.Runs, e.Ready, e.InFlight, e.Scheduled,
		cli.If(e.Waiting > 0, ", %v wait for other steps or are held", e.Waiting))
	if !served(e) {
		t.Row("done by", doers(e))
		paceRows(&t, e)
		return t.String()
	}
	t.Say("requests", "%v waiting, %v taken", e.Backlog, e.Processing)
	t.Row("calls", callsText(e))
	t.Row("concurrency", cmp.Or(cli.If(e.Concurrency > 0, "%v for each instance, set by an operator", e.Concurrency),
		"left to the services"))
	t.Row("reads", fieldsText(e.Reads))
	t.Row("answers", fieldsText(e.Answers))
	paceRows(&t, e)
	t.Row("rate", cli.Rate(e.Rate))
	t.Say("one item", "p50 %v, p99 %v", cli.PerItem(e.P50Millis), cli.PerItem(e.P99Millis))
	t.Say("answered", "%v items, %v of them with an error", e.Items, e.Errors)
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
		kind := said.Properties[name].Type
		fields = append(fields, cli.Text("%v%v%v", name, cli.If(kind != nil, " %v", kind),
			cli.If(!slices.Contains(said.Required, name), " (optional)")))
	}
	if len(fields) == 0 {
		return cli.EscapeControl(fmt.Sprintf("%v", cmp.Or(said.Type, any("anything"))))
	}
	return strings.Join(fields, ", ")
}

func instancesOf(e *client.Endpoint, room int) string {
	if served(e) {
		return instancesText(e.Listeners, room)
	}
	if len(e.Nodes) == 0 {
		return "\nno live node does this\n"
	}
	return "\n" + cli.InertText(strings.Join(e.Nodes, "\n")) + "\n"
}

func instancesText(all []client.Listener, room int) string {
	if len(all) == 0 {
		return "\nno service listens\n"
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
	waits := l.Reason != "" && l.State == string(wire.StateWaiting) // else it listens, and something is denied to it
	notes := cli.Join(", ", cli.If(waits, "waits: ")+l.Reason,
		cli.If(l.Redelivered > 0, "%v requests redelivered", l.Redelivered), cli.If(l.GivenUp > 0, "%v given up", l.GivenUp),
		cli.If(l.Dead > 0, "%v dead-lettered", l.Dead), cli.If(l.Rebinds > 0, "%v times its consumer was lost", l.Rebinds))
	return cli.If(notes != "", "  %v: %v\n", l.Instance, notes)
}

type endpointsExplain struct{ endpointName }

func (e *endpointsExplain) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Print(term, cli.EndpointExplanationText)(cl.ExplainEndpoint(ctx, e.Name))
}

func paceRows(t *cli.Table, e *client.Endpoint) {
	requests := ""
	if e.RequestRate > 0 {
		requests = requestRateText(e.RequestRate)
	}
	t.Row("limits", cli.Join(", ", budgetText(e.MaxInFlight), rateLimitText(e.RateLimit), requests))
	if len(e.Namespaces) > 0 {
		t.Row("namespaces", strings.Join(e.Namespaces, ", "))
	}
	p := e.Pace
	if p == nil {
		t.Row("pace", "nodes have not had to find one yet")
		return
	}
	t.Row("pace", learnedText(p))
	breaker := "closed"
	if p.Breaker == client.BreakerStateOpen {
		breaker = "OPEN: " + p.BreakerReason + cli.If(p.BreakerSince != nil, ", since %v", p.BreakerSince) +
			cli.If(p.ProbeAt != nil, "; %v probes so far, the next at %v", p.Probes, p.ProbeAt)
	}
	t.Row("breaker", breaker)
}

func learnedText(p *client.PaceView) string {
	rate := ""
	if p.Rate != nil {
		rate = "takes " + cli.Rate(*p.Rate)
	}
	capped := p.ChunkCap != nil && p.ChunkCapUntil != nil
	return cli.Join(", ", cli.Text("%v requests in flight, up to %v allowed", p.RequestsOut, p.InFlight), rate,
		cli.If(p.Chunk != nil, "chunks of %v do best", p.Chunk),
		cli.If(capped, "chunks over %v fail (until %v)", p.ChunkCap, p.ChunkCapUntil))
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
	Name        string            `arg:"" help:"The endpoint's name. It need not be known yet."`
	Concurrency *int              `type:"limit" off:"default" within:"1,1024" help:"Concurrent chunks in each instance, 1 to 1024, or default." placeholder:"N"`
	MaxInFlight *int              `type:"limit" off:"none" within:"1,10000" help:"Requests in flight over all runs, 1 to 10000, or none." placeholder:"N"`
	Rate        *float64          `type:"limit" off:"none" within:"0.001,10000000" like:"items a second from" help:"Items a second over all runs, or none." placeholder:"N"`
	RequestRate *requestRate      `type:"limit" off:"none" like:"a rate of requests like 10/s, 50/m or 100/h" help:"Requests over all runs and collectors, as 50/m or 10/s, or none." placeholder:"N/m"`
	Namespaces  []string          `help:"Namespaces whose runs and collectors may use it, or all." placeholder:"NAME,…"`
	ChunkCap    string            `enum:",0" default:"" help:"0 forgets the size above which whole requests fail; nodes find that cap automatically." placeholder:"0"`
	IfWas       map[string]string `help:"Refuse the change unless the setting has this value; repeatable." placeholder:"NAME=VALUE"`
	Breaker     string            `enum:",closed" default:"" help:"closed means that it is not an outage: for 10 minutes failures use up attempts. Nodes open it automatically." placeholder:"closed"`
}

type requestRate float64

func (r *requestRate) UnmarshalText(text []byte) error {
	n, err := collector.ParseRequestRate(string(text))
	*r = requestRate(n)
	return err
}

func (e *endpointsSet) Validate() error {
	if reflect.DeepEqual(*e, endpointsSet{Name: e.Name, IfWas: e.IfWas}) {
		return errors.New("say what to set: --concurrency, --max-in-flight, --rate, --request-rate, --namespaces, " +
			"--chunk-cap 0 or --breaker closed")
	}
	return nil
}

func (e *endpointsSet) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	set := client.EndpointChange{Concurrency: e.Concurrency, MaxInFlight: e.MaxInFlight, Rate: e.Rate,
		RequestRate: (*float64)(e.RequestRate), IfWas: e.IfWas}
	if len(e.Namespaces) > 0 {
		if set.Namespaces = e.Namespaces; slices.Equal(set.Namespaces, []string{"all"}) {
			set.Namespaces = []string{}
		}
	}
	if e.ChunkCap != "" {
		set.ChunkCap = new(int)
	}
	if e.Breaker != "" {
		set.Breaker = &e.Breaker
	}
	done, err := cl.SetEndpoint(ctx, e.Name, set)
	if list, failed := cl.ListEndpoints(ctx); err == nil && failed == nil {
		e.Name = done.Endpoint // its own spelling
		e.warnIfUnknown(term, list.Endpoints)
	}
	return cli.Say(term, func(set *client.EndpointSetting) string {
		return cli.Text("endpoint %v: %v", e.Name, e.told(set))
	})(done, err)
}

// warnIfUnknown warns of a name that may be misspelled.
func (e *endpointsSet) warnIfUnknown(term *cli.Console, list []client.Endpoint) {
	var known []string
	for i := range list {
		if one := &list[i]; len(one.Listeners)+len(one.Nodes) > 0 || one.Runs > 0 {
			known = append(known, one.Name)
		}
	}
	if slices.Contains(known, e.Name) {
		return
	}
	if near := strictyaml.Nearest(e.Name, known); len(near) > 0 {
		known = near
	}
	term.Warn([]string{fmt.Sprintf("no service listens on %s and no run uses it", e.Name) +
		cli.If(len(known) > 0, "; known: %v", strings.Join(known, ", "))})
}

func (e *endpointsSet) told(set *client.EndpointSetting) string {
	concurrency := cmp.Or(cli.If(set.Concurrency > 0, "%v concurrent chunks in each instance", set.Concurrency),
		"concurrency is left to its services")
	namespaces := cmp.Or(cli.If(len(set.Namespaces) > 0, "namespaces %v", strings.Join(set.Namespaces, ", ")),
		"all namespaces")
	return cli.Join("; ", cli.If(e.Concurrency != nil, "%v, within seconds", concurrency),
		cli.If(e.MaxInFlight != nil, "%v", budgetText(set.MaxInFlight)), cli.If(e.Rate != nil, "%v", rateLimitText(set.Rate)),
		cli.If(e.RequestRate != nil, "%v", requestRateText(set.RequestRate)),
		cli.If(len(e.Namespaces) > 0, "it may be used by %v", namespaces),
		cli.If(e.ChunkCap != "", "requests may be of any size again"), cli.If(e.Breaker != "",
			"its breaker stays closed for 10 minutes: items that fail use up their attempts"))
}

func budgetText(n int) string {
	return cmp.Or(cli.If(n != 0, "at most %v requests in flight over all runs", n), "no budget of requests")
}

func rateLimitText(perSecond float64) string {
	return cmp.Or(cli.If(perSecond > 0, "at most %v items a second over all runs", cli.Pace(perSecond)), "no rate limit")
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

type endpointsCanary struct {
	Name  string  `arg:"" help:"The endpoint's name."`
	To    string  `help:"Endpoint of the new version (the current canary)." placeholder:"ENDPOINT"`
	Share float64 `within:"0.01,100" xor:"share" required:"" help:"Percent of runs' requests to send to it, 0.01 to 100." placeholder:"PERCENT"`
	All   bool    `xor:"share" required:"" help:"Send all requests to it, also retries of runs in progress."`
	None  bool    `xor:"share" required:"" help:"Send none to it; requests that no service has received return to NAME."`
}

const wholeShare = 100

func (e *endpointsCanary) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	share := e.Share
	if e.All {
		share = wholeShare
	}
	to := client.Canary{Endpoint: e.To, Share: share}
	return cli.Say(term, func(set *client.EndpointSetting) string {
		if set.CanaryShare == 0 {
			return cli.Text("no requests of %v go to %v any more", e.Name, set.Canary)
		}
		return cli.Text("%v%% of the requests of %v go to %v; compare: tranche endpoints show %v", set.CanaryShare, e.Name,
			set.Canary, e.Name)
	})(cl.SetEndpoint(ctx, e.Name, client.EndpointChange{Canary: &to}))
}

func canaryText(c *client.EndpointCanaryView, room int) string {
	if c == nil {
		return ""
	}
	list := cli.List[client.VersionStats]{
		Columns: "CANARY|REQUESTS>|ITEMS>|FAILED>|RETRIED>|TIMEOUTS>|P50>|P95>|CODES",
		Row: func(f *client.VersionStats) []any {
			failed := "-"
			if f.Items > 0 {
				failed = fmt.Sprintf("%.2f%%", wholeShare*float64(f.Failed)/float64(f.Items))
			}
			var codes []string
			for _, c := range f.Codes {
				codes = append(codes, cli.Text("%v %v", c.Items, c.Code))
			}
			return []any{f.Endpoint, f.Requests, f.Items, failed, f.Retried, f.Timeouts, cli.PerItem(f.P50Millis),
				cli.PerItem(f.P95Millis), cli.OrDash(strings.Join(codes, ", "))}
		},
	}
	return "\n" + cli.EscapeControl(c.State) + cli.Text(", since %v\n", c.Since) + list.Text(c.Compared, room)
}
