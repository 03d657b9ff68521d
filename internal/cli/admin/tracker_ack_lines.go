package admin

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

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
