package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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

type trackerShow struct {
	Batch   string `arg:"" help:"A batch's id."`
	Missing int    `default:"10" help:"How many ranges of what is missing to show (${default})." placeholder:"N"`
}

func (s *trackerShow) Validate() error {
	if s.Missing < 0 || s.Missing > maxMissing {
		return fmt.Errorf("--missing is %d; it must lie between 0 and %d", s.Missing, maxMissing)
	}
	return nil
}

// maxMissing is how many ranges one answer has.
const maxMissing = 10_000

// Run shows a batch.
func (s *trackerShow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	batch, err := cl.GetTracker(ctx, s.Batch, client.GetTrackerParams{Missing: s.Missing}, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	return term.Printf("%s%s", batchText(&batch), missingText(&batch))
}

func batchText(b *client.BatchView) string {
	t := cli.Table{}
	t.Row("batch", cli.Inert(b.ID))
	t.Row("owner", cli.Inert(b.Owner))
	if b.Key != "" {
		t.Row("key", cli.Inert(b.Key))
	}
	t.Row("state", stateOfBatch(b.State, b.SealedAt, b.CompletedAt, b.ExpiredAt))
	t.Row("items", fmt.Sprintf("%s in %s", cli.Count(b.Items), things(int64(b.Groups), "group")))
	t.Row("pending", fmt.Sprintf("%s in %s", cli.Count(b.Pending), things(int64(b.OpenGroups), "group")))
	t.Row("done", cli.Count(b.Done))
	t.Row("failed", cli.Count(b.Failed)+codesText(b.Codes))
	t.Row("opened", cli.Moment(b.CreatedAt)+" by "+cli.Inert(b.CreatedBy))
	t.Row("last active", cli.Moment(b.ActiveAt))
	t.Row(expiryText(b))
	if h := b.Webhook; h != nil {
		t.Row("webhook", webhookText(h))
	}
	return t.String()
}

func stateOfBatch(state string, sealed, completed, expired *time.Time) string {
	if at := cmp.Or(completed, expired, sealed); at != nil {
		return state + " since " + cli.Moment(*at)
	}
	return state
}

// expiryText says when the batch is ended or deleted if nothing happens to it.
func expiryText(b *client.BatchView) (label, text string) {
	switch b.State {
	case "open":
		return "expires", "when idle for " + cli.ShortTime(cli.Inert(b.OpenIdle))
	case "sealed":
		return "expires", "when idle for " + cli.ShortTime(cli.Inert(b.SealedIdle))
	}
	return "deleted", cli.ShortTime(cli.Inert(b.Keep)) + " after its end"
}

// codesText lists why items failed, the most frequent first.
func codesText(codes map[string]int64) string {
	if len(codes) == 0 {
		return ""
	}
	names := slices.SortedFunc(maps.Keys(codes), func(a, b string) int {
		return cmp.Or(cmp.Compare(codes[b], codes[a]), cmp.Compare(a, b))
	})
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = cli.Inert(name) + " " + cli.Count(codes[name])
	}
	return " (" + strings.Join(all, ", ") + ")"
}

func webhookText(h *client.WebhookView) string {
	text := cli.Inert(h.URL) + ", signed with " + cli.Inert(h.Secret) + ": "
	switch h.State {
	case "none":
		return text + "is told when the batch ends"
	case "due":
		text += fmt.Sprintf("due, after %s", things(int64(h.Attempts), "attempt"))
		if h.NextAt != nil {
			text += "; next at " + cli.Moment(*h.NextAt)
		}
	default:
		text += strings.ReplaceAll(cli.Inert(h.State), "_", " ")
	}
	if h.Error != "" {
		text += "; " + cli.Inert(h.Error)
	}
	return text
}

func missingText(b *client.BatchView) string {
	if len(b.Missing) == 0 {
		return ""
	}
	var text strings.Builder
	text.WriteString("\nmissing:\n")
	for _, r := range b.Missing {
		fmt.Fprintf(&text, "  %s:%s\n", cli.Inert(b.ID), cli.Inert(r))
	}
	fmt.Fprintf(&text, "all of it: tranche tracker missing %s\n", cli.Inert(b.ID))
	return text.String()
}

type trackerMissing struct {
	Batch string `arg:"" help:"A batch's id."`
	After string `help:"Only what follows this item, like 12:8191." placeholder:"ITEM"`
	Limit int    `help:"How many ranges at most (all)." placeholder:"N"`
}

func (m *trackerMissing) Validate() error {
	if m.Limit < 0 {
		return fmt.Errorf("--limit is %d; it must be 1 or more", m.Limit)
	}
	return nil
}

// Run prints what is missing.
func (m *trackerMissing) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	params := client.ListTrackerMissingParams{After: m.After, Limit: maxMissing}
	all := []string{}
	for left := m.Limit; ; {
		if m.Limit > 0 {
			params.Limit = min(left, maxMissing)
		}
		page, err := cl.ListTrackerMissing(ctx, m.Batch, params)
		if err != nil {
			return err
		}
		lines := make([]string, len(page.Ranges))
		for i, r := range page.Ranges {
			lines[i] = page.Batch + ":" + r
		}
		left -= len(lines)
		if term.JSON {
			all = append(all, lines...)
		} else if err := term.Printf("%s", joined(lines)); err != nil {
			return err
		}
		if page.Next == "" || m.Limit > 0 && left <= 0 {
			break
		}
		params.After = page.Next
	}
	if term.JSON {
		return term.Document(all)
	}
	return nil
}

func joined(lines []string) string {
	var text strings.Builder
	for _, line := range lines {
		text.WriteString(cli.Inert(line) + "\n")
	}
	return text.String()
}

type trackerList struct {
	Owner string `help:"Only this one's." placeholder:"NAME"`
	State string `enum:",open,sealed,completed,expired" default:"" help:"Only those in this state: open, sealed, completed or expired." placeholder:"STATE"`
	After string `help:"Only those older than this one, by its id." placeholder:"ID"`
	Limit int    `default:"20" help:"How many." placeholder:"N"`
}

func (l *trackerList) Validate() error { return cli.ListLimit(l.Limit, maxBatches) }

// maxBatches is how many batches one answer has.
const maxBatches = 1000

// Run lists batches.
func (l *trackerList) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	page, err := cl.ListTrackers(ctx, client.ListTrackersParams{
		Owner: l.Owner, State: l.State, After: l.After, Limit: l.Limit,
	}, term.Keep())
	switch {
	case err != nil || term.JSON:
		return term.Answered(err)
	case len(page.Batches) == 0:
		return term.Printf("no tracker batches\n")
	}
	t := cli.Table{Room: term.Room(), Right: map[int]bool{4: true, 5: true}}
	t.Row("BATCH", "OWNER", "KEY", "STATE", "ITEMS", "OPEN GROUPS", "ACTIVE")
	for i := range page.Batches {
		b := &page.Batches[i]
		t.Row(cli.Inert(b.ID), cli.Inert(b.Owner), cli.Inert(b.Key), cli.Inert(b.State),
			cli.Count(b.Items),
			cli.Count(int64(b.OpenGroups)), cli.Moment(b.ActiveAt))
	}
	if err := term.Printf("%s", t.String()); err != nil {
		return err
	}
	if page.Next != "" {
		term.Note("there are more; go on with --after %s", cli.Inert(page.Next))
	}
	return nil
}
