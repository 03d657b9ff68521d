package trackers

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/endpoints/fanout"
)

// span is items of one batch: those from lo to hi of one group, or all of the groups first to last.
type span struct {
	batch       uuid.UUID
	first, last int // groups
	lo, hi      int // of the only group; hi -1: whole groups
	all         bool
}

func (s *span) whole() bool { return s.hi < 0 }

const (
	idForm    = "an id is batch:group:index"
	rangeForm = "a range is group:low-high, group:index, group, group-group or all"
)

// parseID reads the id of an item.
func parseID(text string) (span, error) {
	id, err := bitfield.ParseItemID(text)
	if err != nil {
		bad, ok := errors.AsType[*bitfield.ItemIDError](err)
		if !ok {
			return span{}, &fanout.Error{Code: fanout.CodeBadID, Message: err.Error()}
		}
		return span{}, &fanout.Error{Code: fanout.CodeBadID, Message: fmt.Sprintf("at character %d: %s; %s", bad.At+1,
			bad.Problem, idForm)}
	}
	return span{batch: id.Batch, first: id.Group, last: id.Group, lo: id.Index, hi: id.Index}, nil
}

// ParseBatch reads the id of a batch.
func ParseBatch(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil || len(text) != uuidLength {
		return uuid.UUID{}, &fanout.Error{Code: fanout.CodeBadID, Value: echo(text), Message: fmt.Sprintf(
			"%q is no id of a batch; that is a UUID like 0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d58", echo(text))}
	}
	return id, nil
}

const uuidLength = 36

// parseRange reads a range of items. It begins with its batch unless the call is about one.
func parseRange(text string, about *uuid.UUID) (span, error) {
	rest := text
	var s span
	if head, tail, ok := strings.Cut(text, ":"); ok && len(head) == uuidLength {
		id, err := uuid.Parse(head)
		if err != nil {
			return span{}, badRange("it begins with %q, which is no UUID", echo(head))
		}
		s.batch, rest = id, tail
	} else if about != nil {
		s.batch = *about
	} else {
		return span{}, badRange("it must begin with the id of its batch and a colon")
	}
	group, indexes, inside := strings.Cut(rest, ":")
	if !inside {
		return s, s.readGroups(rest)
	}
	first, err := number("group", group, bitfield.MaxGroup)
	if err != nil {
		return span{}, err
	}
	s.first, s.last = first, first
	s.lo, s.hi, err = lowHigh("index", indexes, bitfield.Size-1)
	return s, err
}

// readGroups reads whole groups: 3, 3-7 or all.
func (s *span) readGroups(text string) (err error) {
	s.hi = -1
	if text == "all" {
		s.all = true
		return nil
	}
	s.first, s.last, err = lowHigh("group", text, bitfield.MaxGroup)
	return err
}

func lowHigh(what, text string, most int) (lo, hi int, err error) {
	low, high, pair := strings.Cut(text, "-")
	if lo, err = number(what, low, most); err != nil || !pair {
		return lo, lo, err
	}
	if hi, err = number(what, high, most); err != nil {
		return 0, 0, err
	}
	if lo > hi {
		return 0, 0, badRange("%s %d is above %s %d; the smaller one comes first", what, lo, what, hi)
	}
	return lo, hi, nil
}

func number(what, text string, most int) (int, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil && !errors.Is(err, strconv.ErrRange) || strings.HasPrefix(text, "+") {
		return 0, badRange("%q is no %s; %s", echo(text), what, rangeForm)
	}
	if err != nil || n > uint64(most) {
		return 0, badRange("%s %s is above %d", what, echo(text), most)
	}
	return int(n), nil // it is not above most
}

func badRange(format string, args ...any) *fanout.Error {
	return &fanout.Error{Code: fanout.CodeBadRange, Message: fmt.Sprintf(format, args...)}
}

// maxEchoed is how much of a text that is wrong an error repeats.
const maxEchoed = 80

func echo(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if runes := []rune(text); len(runes) > maxEchoed {
		return string(runes[:maxEchoed]) + "…"
	}
	return text
}
