package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

type trackerAck struct {
	Refs  []string `arg:"" optional:"" name:"item" help:"Ids like batch:group:index, and ranges like batch:group:low-high, batch:group-group and batch:all."`
	Batch string   `help:"All are of this batch, and ranges may leave it out." placeholder:"ID"`
	File  string   `help:"A file of ids and ranges, one a line; - is standard input." placeholder:"FILE"`
	Code  string   `help:"They have failed for good, and why." placeholder:"CODE"`
}

func (a *trackerAck) Validate() error {
	if (len(a.Refs) > 0) == (a.File != "") {
		return errors.New("name items, or a --file of them")
	}
	return nil
}

// Run acknowledges items. Those of a file go in pieces: what is sent again after a failure does no harm.
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
	sent := 0
	for {
		piece, err := input.fill(a.Code)
		if err == nil && piece.count() == 0 {
			break
		}
		var acked client.BatchesAcked
		if err == nil {
			acked, err = a.send(ctx, term, cl, piece.set)
			err = input.place(err, piece)
		}
		if err != nil {
			return soFar(err, sent)
		}
		sent += piece.count()
		total.Newly += acked.Newly
		total.Completed = append(total.Completed, acked.Completed...)
	}
	if sent == 0 {
		return fmt.Errorf("--file %s names no items", a.File)
	}
	if term.JSON {
		return term.Document(total)
	}
	return term.Printf("%s", ackedText(&total))
}

func (a *trackerAck) send(
	ctx context.Context, term *cli.Console, cl *client.Client, set client.Acknowledgement,
) (client.BatchesAcked, error) {
	if a.Batch != "" {
		return cl.AckTracker(ctx, a.Batch, set, term.Keep())
	}
	return cl.AckTrackerItems(ctx, set, term.Keep())
}

// soFar says what had been done before an error.
func soFar(err error, sent int) error {
	if sent == 0 {
		return err
	}
	return fmt.Errorf("%s were acknowledged, and then: %w", things(int64(sent), "line"), err)
}

// isItemID tells ids from ranges. What is neither goes as what it resembles, and the server says what is wrong with it.
func isItemID(text string) bool {
	_, err := bitfield.ParseItemID(text)
	last := text[strings.LastIndex(text, ":")+1:]
	return err == nil || strings.Count(text, ":") == 2 && !strings.Contains(last, "-")
}

func ackedText(acked *client.BatchesAcked) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s newly acknowledged\n", things(acked.Newly, "item"))
	for _, batch := range acked.Completed {
		fmt.Fprintf(&text, "batch %s is complete by that\n", cli.Inert(batch))
	}
	return text.String()
}
