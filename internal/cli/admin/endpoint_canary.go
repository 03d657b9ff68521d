package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

type endpointsCanary struct {
	Name  string  `arg:"" help:"The endpoint's name."`
	To    string  `help:"Endpoint on which the new version listens." placeholder:"ENDPOINT"`
	Share float64 `within:"0.01,100" help:"Percent of the requests of runs that go to it." placeholder:"PERCENT"`
	All   bool    `help:"Send it all requests, also those of runs in progress."`
	None  bool    `help:"Pull it back: send it no requests; what no service has received goes to NAME."`
}

// wholeShare is a share in percent.
const wholeShare = 100

func (e *endpointsCanary) Validate() error {
	chosen := 0
	for _, is := range []bool{e.Share != 0, e.All, e.None} {
		if is {
			chosen++
		}
	}
	if chosen != 1 {
		return errors.New("give one of --share PERCENT, --all and --none")
	}
	if e.None && e.To != "" {
		return errors.New("--none needs no --to")
	}
	return nil
}

func (e *endpointsCanary) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	share := e.Share
	if e.All {
		share = wholeShare
	}
	to := client.EndpointCanary{Endpoint: e.To, Share: share}
	return cli.Say(term, func(set *client.EndpointSetting) string {
		if set.CanaryShare == 0 {
			return cli.Text("no requests of %v go to %v any more", e.Name, set.Canary)
		}
		return cli.Text("%v%% of the requests of %v go to %v; compare: tranche endpoints show %v", set.CanaryShare, e.Name,
			set.Canary, e.Name)
	})(cl.SetEndpoint(ctx, e.Name, client.EndpointSettings{Canary: &to}))
}

func canaryText(c *client.EndpointCanaryView, room int) string {
	if c == nil {
		return ""
	}
	list := cli.List[client.VersionFigures]{
		Columns: "CANARY|REQUESTS>|ITEMS>|FAILED>|RETRIED>|TIMEOUTS>|P50>|P95>|CODES",
		Row: func(f *client.VersionFigures) []any {
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
