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
	"github.com/tranchehq/tranche/bitfield/tracker/service"
	"github.com/tranchehq/tranche/endpoints/fanout"
)

// wanted is the items that one call acknowledges.
type wanted struct {
	about   *uuid.UUID // the batch that the call is about; nil: any
	asked   fanout.Acknowledgement
	batches []*wantedBatch // in ascending order of their ids, which is that of locks
}

// wantedBatch is the items of one batch.
type wantedBatch struct {
	id    uuid.UUID
	masks map[int]*bitfield.Set
	whole []tracker.Span
	all   bool
}

// readWanted reads what a call acknowledges. An error names the text and its place.
func readWanted(about *uuid.UUID, asked fanout.Acknowledgement) (*wanted, error) {
	switch {
	case len(asked.IDs)+len(asked.Ranges) == 0:
		return nil, &fanout.Error{Code: fanout.CodeNothing, Message: "no item is named; give ids or ranges"}
	case len(asked.IDs) > fanout.MaxIDs:
		return nil, tooMany("ids", len(asked.IDs), fanout.MaxIDs)
	case len(asked.Ranges) > fanout.MaxRanges:
		return nil, tooMany("ranges", len(asked.Ranges), fanout.MaxRanges)
	}
	if err := checkName("code", asked.Code); err != nil {
		return nil, err
	}
	w := &wanted{about: about, asked: asked}
	found, masks := map[uuid.UUID]*wantedBatch{}, 0
	err := w.each(func(s *span, place string, text string) error {
		if about != nil && s.batch != *about {
			return &fanout.Error{Code: fanout.CodeWrongBatch, Place: place, Value: echo(text), Message: fmt.Sprintf(
				"%q is of batch %s, and the call is about batch %s", echo(text), s.batch, about)}
		}
		b := found[s.batch]
		if b == nil {
			b = &wantedBatch{id: s.batch, masks: map[int]*bitfield.Set{}}
			found[s.batch] = b
			w.batches = append(w.batches, b)
		}
		masks -= len(b.masks)
		b.add(s)
		masks += len(b.masks)
		if masks > service.MaxAckGroups { // before they take up the node's memory
			return &fanout.Error{Code: fanout.CodeTooMany, Message: fmt.Sprintf(
				"items of more than %d groups are named; make several calls", service.MaxAckGroups)}
		}
		if len(b.masks) > maxGroups {
			return &fanout.Error{Code: fanout.CodeTooMany, Message: fmt.Sprintf("items of more than %d groups of a batch are "+
				"named; make several calls, or name whole groups by ranges like 0-9999", maxGroups)}
		}
		return nil
	})
	slices.SortFunc(w.batches, func(a, b *wantedBatch) int { return bytes.Compare(a.id[:], b.id[:]) })
	return w, err
}

// maxGroups bounds the masks of a call, which take 1 KB each.
const maxGroups = 8192

func tooMany(what string, given, most int) *fanout.Error {
	return &fanout.Error{Code: fanout.CodeTooMany, Place: what, Message: fmt.Sprintf(
		"%d %s are given; a call takes %d, so make several", given, what, most)}
}

// each reads the ids and the ranges, and calls f with each, its place and its text.
func (w *wanted) each(f func(s *span, place, text string) error) error {
	read := func(list string, texts []string, parse func(string) (span, error)) error {
		for i, text := range texts {
			s, err := parse(text)
			if err == nil {
				err = f(&s, list, text)
			}
			if bad, ok := err.(*fanout.Error); ok { //nolint:errorlint // both make it
				bad.Place, bad.Value = fmt.Sprintf("%s[%d]", list, i), echo(text)
				if bad.Code == fanout.CodeBadID || bad.Code == fanout.CodeBadRange {
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

func (b *wantedBatch) add(s *span) {
	switch {
	case s.all:
		b.all = true
	case s.whole():
		b.whole = append(b.whole, tracker.Span{First: s.first, Last: s.last})
	default:
		mask := b.masks[s.first]
		if mask == nil {
			mask = &bitfield.Set{}
			b.masks[s.first] = mask
		}
		if s.lo == s.hi {
			mask.Add(s.lo)
		} else {
			*mask = mask.Or(bitfield.Range(s.lo, s.hi+1))
		}
	}
}

// groups is how many masks a call has. One that names whole groups, of which no one knows how many there are, has as
// many as a transaction takes, so that it goes by itself.
func (w *wanted) groups() (n int) {
	for _, b := range w.batches {
		n += len(b.masks)
		if b.all || len(b.whole) > 0 {
			n = max(n, maxMasks)
		}
	}
	return n
}

// acks returns the call as the store takes it: one for each batch, in their order.
func (w *wanted) acks() []service.BatchAck {
	all := make([]service.BatchAck, len(w.batches))
	for i, b := range w.batches {
		all[i] = service.BatchAck{Batch: b.id, Whole: b.whole, All: b.all, Code: w.asked.Code}
		for group, mask := range b.masks {
			all[i].Items = append(all[i].Items, tracker.Ack{Group: group, Mask: *mask})
		}
	}
	return all
}

// blame finds the text that named what the store refused: a batch, a group of it, or an item past the group's size. It
// returns nil when this call named no such thing.
func (w *wanted) blame(bad *misfit) *fanout.Error {
	var found *fanout.Error
	_ = w.each(func(s *span, _, text string) error { // it was read before
		if s.batch == bad.batch && bad.hits(s) {
			found = bad.tell(text)
			return found
		}
		return nil
	})
	return found
}

// misfit is something that was named and does not exist.
type misfit struct {
	batch        uuid.UUID
	group        int // -1: the batch itself
	groups, size int // what there is; size 0: no such group
}

// misfitOf returns what the store refused because it does not exist, or nil.
func misfitOf(err error) *misfit {
	if bad, ok := errors.AsType[*tracker.GroupError](err); ok {
		return &misfit{batch: bad.Batch, group: bad.Group, groups: bad.Groups, size: bad.Size}
	}
	if bad, ok := errors.AsType[*service.NotFoundError](err); ok {
		return &misfit{batch: bad.Batch, group: -1}
	}
	return nil
}

func (m *misfit) hits(s *span) bool {
	switch {
	case m.group < 0:
		return true
	case s.all:
		return false
	case s.whole():
		return m.size == 0 && s.last >= m.group
	default:
		return s.first == m.group && (m.size == 0 || s.hi >= m.size)
	}
}

func (m *misfit) tell(text string) *fanout.Error {
	e := &fanout.Error{Code: fanout.CodeNoGroup}
	switch {
	case m.group < 0:
		e = noBatch(m.batch)
		e.Message = fmt.Sprintf("%q: %s", echo(text), e.Message)
	case m.size > 0:
		e.Code = fanout.CodePastSize
		e.Message = fmt.Sprintf("%q: group %d of the batch has items 0 to %d", echo(text), m.group, m.size-1)
	case m.groups > 0:
		e.Message = fmt.Sprintf("%q: the batch has groups 0 to %d", echo(text), m.groups-1)
	default:
		e.Message = fmt.Sprintf("%q: the batch has no groups yet; add items first", echo(text))
	}
	return e
}

// noBatch says that there is no such batch.
func noBatch(id uuid.UUID) *fanout.Error {
	return &fanout.Error{Code: fanout.CodeNoBatch, Value: id.String(), Message: fmt.Sprintf(
		"there is no tracker batch %s, or it ended and is no longer kept; see tranche tracker list", id)}
}

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
