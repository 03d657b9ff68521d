package trackers

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/endpoints/trackerclient"
)

type wanted struct {
	about  *uuid.UUID // the call's batch; nil: any
	asked  trackerclient.Acknowledgement
	acks   []tracker.ItemsAck // one per batch, sorted by batch ID, which is the order of locks
	places map[place]int      // indexes of these and of their masks, while reading
}

type place struct {
	batch uuid.UUID
	group int // -1: the batch
}

// maxGroups limits a call's masks in one batch, of 1 KB each.
const maxGroups = 8192

func readWanted(in trackerclient.AckRequest) (*wanted, error) {
	w := &wanted{asked: in.Acknowledgement, places: map[place]int{}}
	if in.Batch != "" {
		id, err := readBatch("batch", in.Batch)
		if err != nil {
			return nil, err
		}
		w.about = &id
	}
	switch {
	case len(in.IDs)+len(in.Ranges) == 0:
		return nil, &trackerclient.Error{Code: trackerclient.CodeNothing, Message: "no item is named; give ids or ranges"}
	case len(in.IDs) > trackerclient.MaxIDs:
		return nil, tooMany("ids", len(in.IDs), trackerclient.MaxIDs)
	case len(in.Ranges) > trackerclient.MaxRanges:
		return nil, tooMany("ranges", len(in.Ranges), trackerclient.MaxRanges)
	}
	if err := tracker.CheckText("code", string(in.Code), trackerclient.MaxCode); err != nil {
		return nil, told(err)
	}
	err := w.each(w.add)
	slices.SortFunc(w.acks, func(a, b tracker.ItemsAck) int { return bytes.Compare(a.Batch[:], b.Batch[:]) })
	w.places = nil
	return w, err
}

func tooMany(what string, given, most int) *trackerclient.Error {
	return &trackerclient.Error{Code: trackerclient.CodeTooMany, Place: what, Message: fmt.Sprintf(
		"%d %s are given; a call takes %d, so make several", given, what, most)}
}

func (w *wanted) each(f func(s *span, text string) error) error {
	read := func(list string, texts []string, parse func(string) (span, error)) error {
		for i, text := range texts {
			s, err := parse(text)
			if err == nil {
				err = f(&s, text)
			}
			if bad, ok := err.(*trackerclient.Error); ok { //nolint:errorlint // both make it
				bad.Place, bad.Value = fmt.Sprintf("%s[%d]", list, i), echo(text)
				if bad.Code == trackerclient.CodeBadID || bad.Code == trackerclient.CodeBadRange {
					bad.Message = fmt.Sprintf("%q: %s", bad.Value, bad.Message)
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := read("ids", w.asked.IDs, parseID); err != nil {
		return err
	}
	return read("ranges", w.asked.Ranges, func(text string) (span, error) { return parseRange(text, w.about) })
}

func (w *wanted) add(s *span, text string) error {
	if w.about != nil && s.batch != *w.about {
		return &trackerclient.Error{Code: trackerclient.CodeWrongBatch, Message: fmt.Sprintf(
			"%q is of batch %s, and the call is about batch %s", echo(text), s.batch, w.about)}
	}
	i, known := w.places[place{s.batch, -1}]
	if !known {
		i = len(w.acks)
		w.places[place{s.batch, -1}] = i
		w.acks = append(w.acks, tracker.ItemsAck{Batch: s.batch, Code: string(w.asked.Code)})
	}
	ack := &w.acks[i]
	switch {
	case s.all:
		ack.All = true
	case s.whole():
		ack.Whole = append(ack.Whole, tracker.Span{First: s.first, Last: s.last})
	default:
		at, known := w.places[place{s.batch, s.first}]
		if !known {
			at = len(ack.Items)
			w.places[place{s.batch, s.first}] = at
			ack.Items = append(ack.Items, tracker.Ack{Group: s.first})
		}
		ack.Items[at].Mask = ack.Items[at].Mask.Or(bitfield.Range(s.lo, s.hi+1))
	}
	switch {
	case len(w.places)-len(w.acks) > tracker.MaxAckGroups: // before they use up the node's memory
		return &trackerclient.Error{Code: trackerclient.CodeTooMany, Message: fmt.Sprintf(
			"items of more than %d groups are named; make several calls", tracker.MaxAckGroups)}
	case len(ack.Items) > maxGroups:
		return &trackerclient.Error{Code: trackerclient.CodeTooMany, Message: fmt.Sprintf("items of more than %d groups "+
			"of a batch are named; make several calls, or name whole groups by ranges like 0-9999", maxGroups)}
	}
	return nil
}

// groups is the number of a call's masks. With whole groups the number is unknown and counts as a full transaction,
// so that the call is committed alone.
func (w *wanted) groups() (n int) {
	for i := range w.acks {
		n += len(w.acks[i].Items)
		if w.acks[i].All || len(w.acks[i].Whole) > 0 {
			n = max(n, maxMasks)
		}
	}
	return n
}

// blame finds the text of this call that named what the store refused: a batch, a group, or an item beyond the
// group's size. nil: no text named it.
func (w *wanted) blame(bad *tracker.GroupError) *trackerclient.Error {
	var found *trackerclient.Error
	_ = w.each(func(s *span, text string) error { // it was parsed before
		if s.batch == bad.Batch && s.misses(bad) {
			found = misfit(bad, text)
			return found
		}
		return nil
	})
	return found
}

// misfitOf returns what the store refused as missing, or nil. Group -1 is the batch.
func misfitOf(err error) *tracker.GroupError {
	if bad, ok := errors.AsType[*tracker.NotFoundError](err); ok {
		return &tracker.GroupError{Batch: bad.Batch, Group: -1}
	}
	bad, _ := errors.AsType[*tracker.GroupError](err)
	return bad
}

func (s *span) misses(bad *tracker.GroupError) bool {
	switch {
	case bad.Group < 0:
		return true
	case s.all:
		return false
	case s.whole():
		return bad.Size == 0 && s.last >= bad.Group
	default:
		return s.first == bad.Group && (bad.Size == 0 || s.hi >= bad.Size)
	}
}

func misfit(bad *tracker.GroupError, text string) *trackerclient.Error {
	e := &trackerclient.Error{Code: trackerclient.CodeNoGroup}
	switch {
	case bad.Group < 0:
		e = noBatch(bad.Batch)
	case bad.Size > 0:
		e.Code = trackerclient.CodePastSize
		e.Message = fmt.Sprintf("group %d of the batch has items 0 to %d", bad.Group, bad.Size-1)
	case bad.Groups > 0:
		e.Message = fmt.Sprintf("the batch has groups 0 to %d", bad.Groups-1)
	default:
		e.Message = "the batch has no groups yet; add items first"
	}
	e.Message = fmt.Sprintf("%q: %s", echo(text), e.Message)
	return e
}

// span is items of one batch: those from lo to hi of one group, or all of the groups first to last.
type span struct {
	batch       uuid.UUID
	first, last int // groups
	lo, hi      int // of a single group; hi -1: whole groups
	all         bool
}

func (s *span) whole() bool { return s.hi < 0 }

const (
	idForm    = "an id is batch:group:index"
	rangeForm = "a range is group:low-high, group:index, group, group-group or all"
)

func parseID(text string) (span, error) {
	id, err := bitfield.ParseItemID(text)
	if err != nil {
		bad, ok := errors.AsType[*bitfield.ItemIDError](err)
		if !ok {
			return span{}, &trackerclient.Error{Code: trackerclient.CodeBadID, Message: err.Error()}
		}
		return span{}, &trackerclient.Error{Code: trackerclient.CodeBadID,
			Message: fmt.Sprintf("at character %d: %s; %s", bad.At+1, bad.Problem, idForm)}
	}
	return span{batch: id.Batch, first: id.Group, last: id.Group, lo: id.Index, hi: id.Index}, nil
}

func parseRange(text string, about *uuid.UUID) (span, error) {
	rest := text
	var s span
	if head, tail, ok := strings.Cut(text, ":"); ok && len(head) == uuidLength {
		id, err := uuid.Parse(head)
		if err != nil {
			return span{}, badRange("it begins with %q, which is not a UUID", echo(head))
		}
		s.batch, rest = id, tail
	} else if about != nil {
		s.batch = *about
	} else {
		return span{}, badRange("it must begin with the id of its batch and a colon")
	}
	var err error
	switch group, indexes, inside := strings.Cut(rest, ":"); {
	case inside:
		if s.first, err = number("group", group, bitfield.MaxGroup); err != nil {
			return span{}, err
		}
		s.last = s.first
		s.lo, s.hi, err = lowHigh("index", indexes, bitfield.Size-1)
	case rest == "all":
		s.hi, s.all = -1, true
	default:
		s.hi = -1
		s.first, s.last, err = lowHigh("group", rest, bitfield.MaxGroup)
	}
	return s, err
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
	return int(n), nil // bounded by most
}

func badRange(format string, args ...any) *trackerclient.Error {
	return &trackerclient.Error{Code: trackerclient.CodeBadRange, Message: fmt.Sprintf(format, args...)}
}

const maxEchoed = 80

func echo(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if runes := []rune(text); len(runes) > maxEchoed {
		return string(runes[:maxEchoed]) + "…"
	}
	return text
}
