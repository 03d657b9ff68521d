package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// Trackers are the commands about tracker batches.
type Trackers struct {
	Open    trackerOpen    `cmd:"" help:"Open a batch for a fan-out, or find the one that its key has opened."`
	Add     trackerAdd     `cmd:"" help:"Add items to an open batch; their ids are batch:group:index."`
	Ack     trackerAck     `cmd:"" help:"Acknowledge items by ids and ranges, as done or as failed."`
	Seal    trackerSeal    `cmd:"" help:"Say that a batch gets no more items."`
	Show    trackerShow    `cmd:"" help:"A batch: its counts, its ages, its webhook and what is missing."`
	Missing trackerMissing `cmd:"" help:"Print what is pending, as ranges that ack takes, one a line."`
	List    trackerList    `cmd:"" help:"List batches, newest first."`
	Delete  trackerDelete  `cmd:"" help:"Delete a batch, whatever its state; nobody is told."`
}

type trackerOpen struct {
	Owner      string         `help:"Whose it is (the user's name)." placeholder:"NAME"`
	Key        string         `help:"Opening again with the same owner and key gives the batch that is there." placeholder:"K"`
	ID         string         `name:"id" help:"A UUID of yours, instead of a new one." placeholder:"UUID"`
	OpenIdle   *time.Duration `help:"It expires when it is open and idle for so long (24h)." placeholder:"TIME"`
	SealedIdle *time.Duration `help:"It expires when it is sealed and idle for so long (168h)." placeholder:"TIME"`
	Keep       *time.Duration `help:"How long it is kept once it has ended (168h)." placeholder:"TIME"`
	Webhook    string         `help:"Who is told of its end, by HTTP; with --secret." placeholder:"URL"`
	Secret     string         `help:"The secret of the operator's file that signs for --webhook." placeholder:"NAME"`
}

func (o *trackerOpen) Validate() error {
	for _, age := range []struct {
		flag string
		d    *time.Duration
	}{{"--open-idle", o.OpenIdle}, {"--sealed-idle", o.SealedIdle}, {"--keep", o.Keep}} {
		if age.d != nil && *age.d <= 0 {
			return fmt.Errorf("%s is %s; it must be positive", age.flag, *age.d)
		}
	}
	if (o.Webhook == "") != (o.Secret == "") {
		return errors.New("--webhook and --secret go together: what is sent is signed")
	}
	return nil
}

// Run opens a batch.
func (o *trackerOpen) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	set := client.BatchSettings{
		ID: o.ID, Owner: o.Owner, Key: o.Key, OpenIdle: ageText(o.OpenIdle), SealedIdle: ageText(o.SealedIdle),
		Keep: ageText(o.Keep),
	}
	if set.Owner == "" {
		set.Owner = cli.OSUser()
	}
	if o.Webhook != "" {
		set.Webhook = &client.WebhookSettings{URL: o.Webhook, Secret: o.Secret}
	}
	opened, err := cl.OpenTracker(ctx, set, term.Keep())
	switch {
	case err != nil || term.JSON:
		return term.Answered(err)
	case opened.Existing:
		return term.Printf("batch %s is there already\n", cli.Inert(opened.ID))
	}
	return term.Printf("batch %[1]s is open\nadd items with: tranche tracker add %[1]s N\n"+
		"then: tranche tracker seal %[1]s\n", cli.Inert(opened.ID))
}

// things counts what has a regular plural.
func things(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return cli.Count(n) + " " + thing + "s"
}

// ageText is a time as the API takes it; none is the server's default.
func ageText(d *time.Duration) string {
	if d == nil {
		return ""
	}
	return d.String()
}

type trackerAdd struct {
	Batch string `arg:"" help:"A batch's id."`
	Items int64  `arg:"" help:"How many, up to 1,000,000,000."`
	Key   string `help:"Adding again with the same key changes nothing." placeholder:"K"`
	IDs   bool   `name:"ids" help:"Print the id of each item, one a line, and nothing else."`
}

// Run adds items.
func (a *trackerAdd) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	added, err := cl.AddTrackerItems(ctx, a.Batch, client.GroupSettings{Items: a.Items, Key: a.Key}, term.Keep())
	switch {
	case err != nil:
		return err
	case a.IDs:
		return printIDs(term, &added)
	case term.JSON:
		return term.Sent()
	}
	what := "added"
	if added.Existing {
		what = "were there already, by their key"
	}
	return term.Printf("%s %s: %s to %s\n", things(added.Items, "item"), what, cli.Inert(added.FirstID),
		cli.Inert(added.LastID))
}

// printIDs expands what was added. Ids are made here: nobody has to send them.
func printIDs(term *cli.Console, added *client.GroupsAdded) error {
	const group = 8192
	var lines strings.Builder
	for n := range added.Items {
		fmt.Fprintf(&lines, "%s:%d:%d\n", cli.Inert(added.Batch), int64(added.FirstGroup)+n/group, n%group)
		if n%group == group-1 || n == added.Items-1 {
			if err := term.Printf("%s", lines.String()); err != nil {
				return err
			}
			lines.Reset()
		}
	}
	return nil
}

type trackerSeal struct {
	Batch string `arg:"" help:"A batch's id."`
}

// Run seals a batch.
func (s *trackerSeal) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	sealed, err := cl.SealTracker(ctx, s.Batch, term.Keep())
	switch {
	case err != nil || term.JSON:
		return term.Answered(err)
	case sealed.Completed:
		return term.Printf("batch %s sealed, and complete by that\n", cli.Inert(sealed.Batch))
	}
	b, err := cl.GetTracker(ctx, s.Batch, client.GetTrackerParams{})
	if err == nil && b.CompletedAt != nil { // which it was before, or is meanwhile
		return term.Printf("batch %s is complete, since %s\n", cli.Inert(sealed.Batch), cli.Moment(*b.CompletedAt))
	}
	return term.Printf("batch %[1]s is sealed, and not complete by that; see how it stands with: tranche tracker show "+
		"%[1]s\n", cli.Inert(sealed.Batch))
}

type trackerDelete struct {
	Batch string `arg:"" help:"A batch's id."`
}

// Run deletes a batch.
func (d *trackerDelete) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	gone, err := cl.DeleteTracker(ctx, d.Batch, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	return term.Printf("batch %s is deleted\n", cli.Inert(gone.Batch))
}
