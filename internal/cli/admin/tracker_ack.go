package admin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
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

// Run sends items of a file in pieces: what is sent again after a failure does no harm.
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
	return fmt.Errorf("%s were acknowledged, and then: %w", cli.Plural(int64(sent), "line"), err)
}

// isItemID tells ids from ranges. What is neither goes as what it resembles, and the server says what is wrong with it.
func isItemID(text string) bool {
	_, err := bitfield.ParseItemID(text)
	last := text[strings.LastIndex(text, ":")+1:]
	return err == nil || strings.Count(text, ":") == 2 && !strings.Contains(last, "-")
}

func ackedText(acked *client.BatchesAcked) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s newly acknowledged\n", cli.Plural(acked.Newly, "item"))
	for _, batch := range acked.Completed {
		fmt.Fprintf(&text, "batch %s is complete by that\n", cli.Inert(batch))
	}
	return text.String()
}

const (
	// maxAckLine bounds a line of a file: an id is shorter.
	maxAckLine = 4 << 10
	// ackIDs and ackRanges are how many lines go in one request.
	ackIDs    = 50_000
	ackRanges = 5_000
)

// ackLines reads ids and ranges, one a line, and knows where each of them stood.
type ackLines struct {
	*bufio.Scanner
	unit string // what a line is called, as in: ids.txt: line
	line int    // the last one that was read
}

// ackPiece is what goes in one request, with the line of each id and of each range.
type ackPiece struct {
	set                 client.Acknowledgement
	idLines, rangeLines []int
}

func (p *ackPiece) count() int { return len(p.idLines) + len(p.rangeLines) }

func linesOf(r io.Reader) *bufio.Scanner {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxAckLine)
	return lines
}

// fill reads what goes in one request; nothing at the end.
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
			text = strings.TrimPrefix(text, "\ufeff") // which some editors put in front of a file
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

// place says on which line stands what the server refused, where it says ids[17].
func (l *ackLines) place(err error, p *ackPiece) error {
	refused, ok := errors.AsType[*client.ProblemError](err)
	if !ok || len(refused.Errors) == 0 {
		return err
	}
	for list, lines := range map[string][]int{"ids": p.idLines, "ranges": p.rangeLines} {
		var i int
		_, miss := fmt.Sscanf(refused.Errors[0].Location, "body."+list+"[%d]", &i)
		if miss == nil && i >= 0 && i < len(lines) {
			return fmt.Errorf("%s %d: %s", l.unit, lines[i], cli.Inert(refused.Errors[0].Message))
		}
	}
	return err
}
