package admin

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/access/natsaccess"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
)

type streamCommands struct {
	Show streamsShow `cmd:"" default:"1" help:"Show what is set for the streams, what they have, and why that differs."`
	Set  streamsSet  `cmd:"" help:"Set their replicas and room, for all nodes; what is not named stays."`
}

type streamsShow struct{}

func (streamsShow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Print(term, streamsText)(cl.ShowStreams(ctx))
}

type streamsSet struct {
	Replicas      *int        `type:"limit" off:"auto" like:"1, 3 or 5" help:"Copies of each stream: 1, 3, 5 or auto (3 in a cluster, else 1)." placeholder:"N"`
	WorkMaxBytes  *size       `type:"limit" off:"default" like:"a size like 2GiB" help:"Room for requests, or default." placeholder:"SIZE"`
	ReplyMaxBytes *size       `type:"limit" off:"default" like:"a size like 2GiB" help:"Room for replies, or default." placeholder:"SIZE"`
	EventMaxBytes *size       `type:"limit" off:"default" like:"a size like 2GiB" help:"Room for events, or default." placeholder:"SIZE"`
	StageMaxBytes *size       `type:"limit" off:"default" like:"a size like 2GiB" help:"Room for replies on their way back into flows, or default." placeholder:"SIZE"`
	FlowMaxBytes  *size       `type:"limit" off:"default" like:"a size like 2GiB" help:"Room for the state of flows that wait, or default." placeholder:"SIZE"`
	DeadMaxBytes  *size       `type:"limit" off:"default" like:"a size like 2GiB" help:"Room for dead letters that no node has taken in, or default." placeholder:"SIZE"`
	EventAge      *daysOrTime `type:"limit" off:"default" like:"a time like 168h or 14d" help:"For how long events stay, as 168h or 14d, or default." placeholder:"TIME"`
}

func (s *streamsSet) Validate() error {
	if *s == (streamsSet{}) {
		return cli.Usage("say what to set: --replicas, --work-max-bytes, --reply-max-bytes, --event-max-bytes, " +
			"--stage-max-bytes, --flow-max-bytes, --dead-max-bytes or --event-age")
	}
	return nil
}

type size int64

func (s *size) UnmarshalText(text []byte) error {
	var n workqueue.Bytes
	err := n.UnmarshalText(text)
	*s = size(n)
	return err
}

type daysOrTime time.Duration

func (a *daysOrTime) UnmarshalText(text []byte) error {
	days, ok := strings.CutSuffix(string(text), "d")
	if n, err := strconv.ParseUint(days, 10, 16); ok && err == nil {
		*a = daysOrTime(time.Duration(n) * 24 * time.Hour)
		return nil
	}
	age, err := time.ParseDuration(string(text))
	if *a = daysOrTime(age); err != nil {
		return fmt.Errorf("invalid time %q; use 12h or 30d", text)
	}
	return nil
}

func (s *streamsSet) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	change := client.StreamChanges{Replicas: s.Replicas, WorkBytes: (*int64)(s.WorkMaxBytes),
		ReplyBytes: (*int64)(s.ReplyMaxBytes), EventBytes: (*int64)(s.EventMaxBytes), StageBytes: (*int64)(s.StageMaxBytes),
		FlowBytes: (*int64)(s.FlowMaxBytes), DeadBytes: (*int64)(s.DeadMaxBytes), EventAge: (*client.Duration)(s.EventAge)}
	now, err := cl.SetStreams(ctx, change)
	err = cli.Say(term, streamsWanted)(now, err)
	if err == nil && !term.JSON {
		term.Note("the leader brings it to JetStream within seconds; see tranche streams")
	}
	return err
}

func streamsWanted(s *client.Streams) string {
	replicas := cli.Count(int64(s.Replicas))
	if s.Auto {
		replicas = "auto" + cli.If(s.Replicas > 0, " (%v here)", s.Replicas)
	}
	size := sizeText
	return cli.Text("set: replicas %v; room for requests %v, replies %v, stages %v, flows %v, events %v (for %v), "+
		"dead letters %v; %v in all on each server that keeps them", replicas, size(s.WorkBytes), size(s.ReplyBytes),
		size(s.StageBytes), size(s.FlowBytes), size(s.EventBytes), cli.ShortTime(s.EventAge.String()), size(s.DeadBytes),
		cli.Gibibytes(s.Bytes))
}

func streamsText(s *client.Streams, room int) string {
	text := streamsWanted(s) + "\n" + cli.If(s.ChangedBy != "", "by %v at %v; ", s.ChangedBy, s.ChangedAt)
	switch {
	case s.Trouble != nil:
		t := s.Trouble
		text += cli.Text("not applied since %v after %v attempts: %v\n", t.Since, t.Tries, t.Error) +
			cli.If(t.NextTry != nil, "retried at %v, and immediately when it is changed\n", t.NextTry)
	case !s.Applied:
		text += "not applied yet; the leader does it within seconds\n"
	default:
		text += "applied at " + cli.MomentOrNever(s.AppliedAt) + "\n"
	}
	if s.Unknown != "" {
		return text + cli.Text("what the streams have is not known: %v\n", s.Unknown)
	}
	list := cli.List[client.StreamView]{
		Columns: "STREAM|REPLICAS>|ROOM>|BYTES>|MESSAGES>|LEADER|DIFFERS",
		Row: func(v *client.StreamView) []any {
			if v.Missing {
				return []any{v.Name, "-", "-", "-", "-", "-", "it does not exist yet; nodes create it"}
			}
			behind := cli.If(len(v.Behind) > 0, "copies not there or behind: %v", strings.Join(v.Behind, ", "))
			return []any{v.Name, v.Replicas, sizeText(max(v.MaxBytes, 0)), v.Bytes, v.Messages,
				cli.OrDash(v.Leader), cli.OrDash(cli.Join("; ", append(v.Differs, behind)...))}
		},
	}
	return text + "\n" + list.Text(s.Streams, room)
}

type natsCommands struct {
	Config natsConfig `cmd:"" help:"Write the configuration of a NATS server, with permissions per role."`
	Revoke natsRevoke `cmd:"" help:"Revoke a role's credentials by JWT; then repeat nats config and reload the servers."`
}

type natsConfig struct {
	Service  []string `sep:"none" help:"A service and the endpoints that it serves; repeatable, as all of these." placeholder:"NAME=ENDPOINT,…"`
	Caller   []string `sep:"none" help:"Callers of endpoints (all endpoints by default). Of a service: what its flows and handlers call." placeholder:"NAME[=ENDPOINT,…]"`
	Producer []string `sep:"none" help:"Who adds to collectors." placeholder:"NAME=COLLECTOR,…"`
	Tracker  []string `help:"Who uses the tracker service." placeholder:"NAME"`
	Viewer   []string `help:"Read-only users of streams, consumers, events and listeners." placeholder:"NAME"`
	Out      string   `help:"Write server.conf here, and a NAME.nk for each, with a seed; keys that are there are kept. Without it the configuration is printed, with passwords from the server's environment." placeholder:"DIR"`
	Operator bool     `help:"With --out: accounts and users by JWTs of an operator, and a NAME.creds for each."`

	Valid daysOrTime `help:"With --operator: how long credentials are valid, such as 90d; the same command issues new ones. No end by default." placeholder:"TIME"`
}

type natsRevoke struct {
	Name string `arg:"" help:"The role, such as a service."`
	Out  string `required:"" help:"The directory of tranche nats config --operator." placeholder:"DIR"`
}

func (r *natsRevoke) Run(_ context.Context, term *cli.Console) error {
	if err := natsaccess.Revoke(r.Out, r.Name); err != nil {
		return err
	}
	if term.JSON {
		return term.Document(map[string]any{"revoke": r.Name})
	}
	return term.Printf("%s", cli.Text("the credentials still work: repeat tranche nats config --operator --out %v "+
		"with all roles, then reload all servers (nats-server --signal reload)\n", r.Out))
}

func (c *natsConfig) Run(_ context.Context, term *cli.Console) error {
	system, err := c.system()
	if err != nil {
		return cli.Usage(err.Error())
	}
	if system.Valid = time.Duration(c.Valid); c.Valid < 0 || c.Valid > 0 && !c.Operator {
		return cli.Usage("--valid needs --operator, and a time like 90d: other credentials have no end")
	}
	if c.Out == "" {
		if c.Operator {
			return cli.Usage("--operator needs --out: there are secrets to write")
		}
		if term.JSON {
			return term.Document(map[string]any{"config": system.Conf(nil)})
		}
		return term.Printf("%s", system.Conf(nil))
	}
	write, variable := system.WriteNkeys, "NATS_NKEY"
	if c.Operator {
		write, variable = system.WriteOperator, "NATS_CREDS"
	}
	files, err := write(c.Out)
	if err != nil {
		return fmt.Errorf("write the NATS configuration: %w", err)
	}
	if term.JSON {
		return term.Document(map[string]any{"files": files, "variable": variable})
	}
	return term.Printf("%s", told(files, variable))
}

func told(files []string, variable string) string {
	t := cli.Table{}
	t.Row("server", "nats-server -c "+files[0])
	for _, file := range files[1:] {
		name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
		t.Row(name, variable+"="+file)
	}
	return t.String()
}

func (c *natsConfig) system() (*natsaccess.System, error) {
	roles := natsaccess.Roles{Trackers: c.Tracker, Viewers: c.Viewer}
	for _, list := range []struct {
		flag  string
		texts []string
		to    *[]natsaccess.Grant
	}{{"--service", c.Service, &roles.Services}, {"--caller", c.Caller, &roles.Callers},
		{"--producer", c.Producer, &roles.Producers}} {
		for _, text := range list.texts {
			grant, err := natsaccess.ParseGrant(text)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", list.flag, err)
			}
			*list.to = append(*list.to, grant)
		}
	}
	return natsaccess.New(roles)
}
