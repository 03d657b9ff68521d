package admin

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

type trackerCommands struct {
	Open    trackerOpen    `cmd:"" help:"Open a batch for a fan-out, or return the one opened with the same key."`
	Add     trackerAdd     `cmd:"" help:"Add items to an open batch; their IDs are batch:group:index."`
	Ack     trackerAck     `cmd:"" help:"Acknowledge items by IDs and ranges, as done or as failed."`
	Seal    trackerSeal    `cmd:"" help:"Close a batch to new items."`
	Show    trackerShow    `cmd:"" help:"Show a batch: its counts, its ages, its webhook and what is missing."`
	Missing trackerMissing `cmd:"" help:"Print pending items as ranges that ack takes, one per line."`
	List    trackerList    `cmd:"" help:"List batches, newest first."`
	Delete  trackerDelete  `cmd:"" help:"Delete a batch in any state; its webhook is not called."`
}

type trackerOpen struct {
	Owner      string `help:"The owner (the user's name)." placeholder:"NAME"`
	Key        string `help:"Opening again with the same owner and key returns the same batch." placeholder:"K"`
	ID         string `name:"id" help:"Your UUID, instead of a new one." placeholder:"UUID"`
	OpenIdle   string `help:"Expire it after this long open and idle (24h)." placeholder:"TIME"`
	SealedIdle string `help:"Expire it after this long sealed and idle (168h)." placeholder:"TIME"`
	Keep       string `help:"How long to keep it after it ends (168h)." placeholder:"TIME"`
	Webhook    string `help:"URL notified of its end; with --secret." placeholder:"URL"`
	Secret     string `help:"The secret of the operator's file that signs for --webhook." placeholder:"NAME"`
}

func (o *trackerOpen) Validate() error {
	if (o.Webhook == "") != (o.Secret == "") {
		return errors.New("--webhook and --secret go together: what is sent is signed")
	}
	return nil
}

func (o *trackerOpen) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	set := client.BatchSettings{
		ID: o.ID, Owner: cmp.Or(o.Owner, cli.OSUser()), Key: o.Key, OpenIdle: o.OpenIdle, SealedIdle: o.SealedIdle,
		Keep: o.Keep,
	}
	if o.Webhook != "" {
		set.Webhook = &client.WebhookSettings{URL: o.Webhook, Secret: o.Secret}
	}
	return cli.Say(term, func(opened *client.BatchOpened) string {
		if opened.Existing {
			return cli.Text("batch %v exists already", opened.ID)
		}
		return cli.Text("batch %[1]v is open\nadd items with: tranche tracker add %[1]v N\n"+
			"then: tranche tracker seal %[1]v", opened.ID)
	})(cl.OpenTracker(ctx, set))
}

type batchID struct {
	Batch string `arg:"" help:"A batch's ID."`
}

type trackerAdd struct {
	batchID
	Items int64  `arg:"" help:"How many, up to 1,000,000,000."`
	Key   string `help:"Adding again with the same key changes nothing." placeholder:"K"`
	IDs   bool   `name:"ids" help:"Print only the ID of each item, one per line."`
}

func (a *trackerAdd) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	added, err := cl.AddTrackerItems(ctx, a.Batch, client.GroupSettings{Items: a.Items, Key: a.Key})
	if err == nil && a.IDs {
		return printIDs(term, &added)
	}
	return cli.Say(term, func(added *client.GroupsAdded) string {
		what := cmp.Or(cli.If(added.Existing, "existed already, by their key"), "added")
		return cli.Text("%v %v: %v to %v", cli.Plural(added.Items, "item"), what, added.FirstID, added.LastID)
	})(added, err)
}

func printIDs(term *cli.Console, added *client.GroupsAdded) error {
	const group = 8192
	var lines strings.Builder
	for n := range added.Items {
		fmt.Fprintf(&lines, "%s:%d:%d\n", cli.EscapeControl(added.Batch), int64(added.FirstGroup)+n/group, n%group)
		if n%group == group-1 || n == added.Items-1 {
			if err := term.Printf("%s", lines.String()); err != nil {
				return err
			}
			lines.Reset()
		}
	}
	return nil
}

type trackerSeal struct{ batchID }

func (s *trackerSeal) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Say(term, func(sealed *client.BatchSealed) string {
		if sealed.Completed {
			return cli.Text("batch %v sealed; it is now complete", sealed.Batch)
		}
		b, err := cl.GetTracker(ctx, s.Batch, client.GetTrackerParams{})
		if err == nil && b.CompletedAt != nil { // before or meanwhile
			return cli.Text("batch %v is complete, since %v", sealed.Batch, b.CompletedAt)
		}
		return cli.Text("batch %[1]v sealed; items are still pending: tranche tracker show %[1]v",
			sealed.Batch)
	})(cl.SealTracker(ctx, s.Batch))
}

type trackerDelete struct{ batchID }

func (d *trackerDelete) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Say(term, func(gone *client.BatchDeleted) string {
		return "batch " + cli.EscapeControl(gone.Batch) + " is deleted"
	})(cl.DeleteTracker(ctx, d.Batch))
}

type trackerShow struct {
	batchID
	Missing int `default:"10" within:"0,10000" help:"How many ranges of missing items to show (${default})." placeholder:"N"`
}

const maxMissing = 10_000

func (s *trackerShow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Print(term, func(b *client.BatchView, _ int) string { return batchText(b) + missingText(b) })(
		cl.GetTracker(ctx, s.Batch, client.GetTrackerParams{Missing: s.Missing}))
}

func batchText(b *client.BatchView) string {
	t := cli.Table{}
	t.Row("batch", b.ID)
	t.Row("owner", b.Owner)
	t.Field("key", b.Key)
	at := cmp.Or(b.CompletedAt, b.ExpiredAt, b.SealedAt)
	t.Row("state", b.State+cli.If(at != nil, " since %v", at))
	t.Say("items", "%v in %v", b.Items, cli.Plural(int64(b.Groups), "group"))
	t.Say("pending", "%v in %v", b.Pending, cli.Plural(int64(b.OpenGroups), "group"))
	t.Row("done", b.Done)
	t.Row("failed", cli.Count(b.Failed)+codesText(b.Codes))
	t.Say("opened", "%v by %v", b.CreatedAt, b.CreatedBy)
	t.Row("last active", b.ActiveAt)
	switch b.State { // when it expires without activity
	case "open":
		t.Row("expires", "when idle for "+cli.ShortTime(b.OpenIdle))
	case "sealed":
		t.Row("expires", "when idle for "+cli.ShortTime(b.SealedIdle))
	default:
		t.Row("deleted", cli.ShortTime(b.Keep)+" after its end")
	}
	if h := b.Webhook; h != nil {
		t.Row("webhook", webhookText(h))
	}
	return t.String()
}

func codesText(codes map[string]int64) string {
	var all []string
	for _, name := range slices.SortedFunc(maps.Keys(codes), func(a, b string) int {
		return cmp.Or(cmp.Compare(codes[b], codes[a]), cmp.Compare(a, b))
	}) {
		all = append(all, name+" "+cli.Count(codes[name]))
	}
	return cli.If(len(all) > 0, " (%v)", strings.Join(all, ", "))
}

func webhookText(h *client.WebhookView) string {
	state := strings.ReplaceAll(h.State, "_", " ")
	switch h.State {
	case "none":
		state = "is notified when the batch ends"
	case "due":
		state = cli.Text("due, after %v%v", cli.Plural(int64(h.Attempts), "attempt"),
			cli.If(h.NextAt != nil, "; next at %v", h.NextAt))
	}
	return cli.Text("%v, signed with %v: %v%v", h.URL, h.Secret, state, cli.If(h.State != "none" && h.Error != "",
		"; %v", h.Error))
}

func missingText(b *client.BatchView) string {
	if len(b.Missing) == 0 {
		return ""
	}
	ranges := cli.Each(b.Missing, func(r *string) string { return cli.Text("  %v:%v\n", b.ID, r) })
	return "\nmissing:\n" + ranges + cli.Text("all of it: tranche tracker missing %v\n", b.ID)
}

type trackerMissing struct {
	batchID
	After string `help:"Only what follows this item, like 12:8191." placeholder:"ITEM"`
	Limit int    `within:"0," help:"How many ranges at most (all)." placeholder:"N"`
}

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
		lines := cli.Each(page.Ranges, func(r *string) string { return cli.Text("%v:%v\n", page.Batch, r) })
		if term.JSON {
			all = append(all, strings.Fields(lines)...)
		} else if err := term.Printf("%s", lines); err != nil {
			return err
		}
		left -= len(page.Ranges)
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

type trackerList struct {
	Owner string `help:"Only those of this owner." placeholder:"NAME"`
	State string `enum:",open,sealed,completed,expired" default:"" help:"Only those in this state: open, sealed, completed or expired." placeholder:"STATE"`
	After string `help:"Only those older than this one, by its ID." placeholder:"ID"`
	Limit int    `default:"20" within:"1,1000" help:"How many, at most 1000." placeholder:"N"`
}

func (l *trackerList) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	page, err := cl.ListTrackers(ctx, client.ListTrackersParams(*l))
	return (&cli.List[client.BatchSummary]{
		Columns: "BATCH|OWNER|KEY|STATE|ITEMS>|OPEN GROUPS>|ACTIVE",
		Row: func(b *client.BatchSummary) []any {
			return []any{b.ID, b.Owner, b.Key, b.State, b.Items, b.OpenGroups, b.ActiveAt}
		},
		Empty: "no tracker batches", Next: page.Next,
	}).Print(term, page.Batches, err)
}

type trackerAck struct {
	Refs  []string `arg:"" optional:"" name:"item" help:"IDs like batch:group:index, and ranges like batch:group:low-high, batch:group-group and batch:all."`
	Batch string   `help:"All are of this batch; ranges may omit it." placeholder:"ID"`
	File  string   `help:"A file of IDs and ranges, one per line; - is standard input." placeholder:"FILE"`
	Code  *string  `help:"Acknowledge them as failed, with this code." placeholder:"CODE"`
}

func (a *trackerAck) Validate() error {
	if (len(a.Refs) > 0) == (a.File != "") {
		return errors.New("name items, or a --file of them")
	}
	if a.Code != nil && *a.Code == "" {
		return errors.New("--code is empty; leave it out for items that are done")
	}
	return nil
}

// Run sends the items of a file in parts: sending a part again does no harm.
func (a *trackerAck) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	input := &ackLines{Scanner: linesOf(strings.NewReader(strings.Join(a.Refs, "\n"))), unit: "argument"}
	if a.File != "" {
		file, _, err := cli.OpenItems("--file", a.File, term.In)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		input = &ackLines{Scanner: linesOf(file), unit: a.File + ": line"}
	}
	total := client.BatchesAcked{Completed: []string{}}
	sent, code := 0, *cmp.Or(a.Code, new(string))
	for {
		piece, err := input.fill(code)
		if err == nil && piece.count() == 0 {
			break
		}
		var acked client.BatchesAcked
		switch batch := cmp.Or(a.Batch, piece.batch()); {
		case err != nil:
		case batch != "":
			acked, err = cl.AckTracker(ctx, batch, piece.set)
		default:
			acked, err = cl.AckTrackerItems(ctx, piece.set)
		}
		if err = input.place(err, piece); err != nil && sent > 0 {
			return fmt.Errorf("%s were acknowledged, and then: %w", cli.Plural(int64(sent), "line"), err)
		} else if err != nil {
			return err
		}
		sent += piece.count()
		total.Newly += acked.Newly
		total.Completed = append(total.Completed, acked.Completed...)
	}
	if sent == 0 {
		return fmt.Errorf("--file %s names no items", a.File)
	}
	if term.JSON {
		return term.Document(total) // the kept answer is the last part's only
	}
	return term.Printf("%s", ackedText(&total))
}

// isItemID distinguishes IDs from ranges. Malformed text goes where it resembles, and the server reports the fault.
func isItemID(text string) bool {
	_, err := bitfield.ParseItemID(text)
	last := text[strings.LastIndex(text, ":")+1:]
	return err == nil || strings.Count(text, ":") == 2 && !strings.Contains(last, "-")
}

func ackedText(acked *client.BatchesAcked) string {
	return cli.Plural(acked.Newly, "item") + " newly acknowledged\n" + cli.Each(acked.Completed,
		func(batch *string) string { return cli.Text("this completed batch %v\n", batch) })
}

const (
	// maxAckLine limits a line of a file: an ID is shorter.
	maxAckLine = 4 << 10
	// ackIDs and ackRanges limit the lines per request.
	ackIDs    = 50_000
	ackRanges = 5_000
)

// ackLines reads IDs and ranges, one per line, and counts the lines.
type ackLines struct {
	*bufio.Scanner
	unit string // name of a line in errors, as in: ids.txt: line
	line int    // the last one read
}

type ackPiece struct {
	set                 client.Acknowledgement
	idLines, rangeLines []int
}

func (p *ackPiece) count() int { return len(p.idLines) + len(p.rangeLines) }

// batch returns the batch of all of it, if there is one: operators of only its namespace may acknowledge there.
func (p *ackPiece) batch() (batch string) {
	for _, text := range slices.Concat(p.set.IDs, p.set.Ranges) {
		of, _, _ := strings.Cut(text, ":")
		if of != cmp.Or(batch, of) {
			return ""
		}
		batch = of
	}
	if _, err := bitfield.ParseItemID(batch + ":0:0"); err != nil {
		return ""
	}
	return batch
}

func linesOf(r io.Reader) *bufio.Scanner {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxAckLine)
	return lines
}

func (l *ackLines) fill(code string) (*ackPiece, error) {
	p := &ackPiece{set: client.Acknowledgement{Code: code}}
	for len(p.idLines) < ackIDs && len(p.rangeLines) < ackRanges {
		if !l.Scan() {
			if err := l.Err(); err != nil {
				return p, fmt.Errorf("%s %d: %w", l.unit, l.line+1, err)
			}
			return p, nil
		}
		l.line++
		text := l.Text()
		if l.line == 1 {
			text = strings.TrimPrefix(text, "\ufeff") // some editors write it at the start of a file
		}
		switch text = strings.TrimSpace(text); {
		case text == "":
		case isItemID(text):
			p.set.IDs, p.idLines = append(p.set.IDs, text), append(p.idLines, l.line)
		default:
			p.set.Ranges, p.rangeLines = append(p.set.Ranges, text), append(p.rangeLines, l.line)
		}
	}
	return p, nil
}

func (l *ackLines) place(err error, p *ackPiece) error {
	refused, ok := errors.AsType[*client.ProblemError](err)
	if !ok || len(refused.Errors) == 0 {
		return err
	}
	for list, lines := range map[string][]int{"ids": p.idLines, "ranges": p.rangeLines} {
		var i int
		_, miss := fmt.Sscanf(refused.Errors[0].Location, "body."+list+"[%d]", &i)
		if miss == nil && i >= 0 && i < len(lines) {
			return fmt.Errorf("%s %d: %s", l.unit, lines[i], cli.EscapeControl(refused.Errors[0].Message))
		}
	}
	return err
}
