package admin

import (
	"context"
	"fmt"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

type namespaceCommands struct {
	List   namespaceList   `cmd:"" help:"List namespaces, what is in progress there, and quotas."`
	Set    namespaceSet    `cmd:"" help:"Make a namespace, or change its quotas: those not given are removed."`
	Delete namespaceDelete `cmd:"" help:"Delete an empty namespace."`
}

type namespaceList struct{}

func (*namespaceList) Run(ctx context.Context, cl *client.Client, term *cli.Console) error {
	list, err := cl.ListNamespaces(ctx)
	return (&cli.List[client.NamespaceView]{
		Columns: "NAME|RUNS|OF|ITEMS|OF|IN FLIGHT|OF|BYTES|OF|CHANGED|BY",
		Row: func(n *client.NamespaceView) []any {
			return []any{n.Name, n.Runs, quotaText(n.MaxRuns), n.Items, quotaText(n.MaxItems), n.InFlight,
				quotaText(n.MaxInFlight), n.Bytes, quotaText(n.MaxBytes), n.ChangedAt, n.ChangedBy}
		},
	}).Print(term, list.Namespaces, err)
}

func quotaText(quota *int64) string {
	if quota == nil {
		return "no limit"
	}
	return fmt.Sprint(*quota)
}

type namespaceSet struct {
	Name     string `arg:"" help:"Up to 32 lower-case letters, digits and hyphens."`
	MaxRuns  *int64 `within:"1," help:"Runs that have not ended, at most." placeholder:"N"`
	MaxItems *int64 `within:"1," help:"Items of those runs, at most." placeholder:"N"`

	MaxInFlight *int64 `within:"1," help:"Requests of its runs in flight, at most." placeholder:"N"`
	MaxBytes    *int64 `within:"1," help:"Bytes that all its runs may store, approximately." placeholder:"N"`
}

func (s *namespaceSet) Run(ctx context.Context, cl *client.Client, term *cli.Console) error {
	return cli.Say(term, func(*client.NamespaceList) string {
		return fmt.Sprintf("namespace %s: runs %s, items %s, requests in flight %s, bytes %s", s.Name, quotaText(s.MaxRuns),
			quotaText(s.MaxItems), quotaText(s.MaxInFlight), quotaText(s.MaxBytes))
	})(cl.SetNamespace(ctx, s.Name, client.Quotas{MaxRuns: s.MaxRuns, MaxItems: s.MaxItems, MaxInFlight: s.MaxInFlight,
		MaxBytes: s.MaxBytes}))
}

type namespaceDelete struct {
	Name string `arg:"" help:"Its name."`
}

func (d *namespaceDelete) Run(ctx context.Context, cl *client.Client, term *cli.Console) error {
	return cli.Say(term, func(gone *client.DeletedNamespace) string {
		return "namespace " + gone.Name + " is deleted"
	})(cl.DeleteNamespace(ctx, d.Name))
}
