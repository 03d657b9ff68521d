package admin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

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
