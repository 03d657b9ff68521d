package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// MaxPayloadGroups bounds the values with a group each. Items with other values share one more group, the last.
const MaxPayloadGroups = 50

// PayloadGroups is the items of a run by the value of one field of their payloads.
type PayloadGroups struct {
	By     string         `json:"by,omitempty" doc:"the field, or lane"`
	Items  int64          `json:"items" doc:"that the run has"`
	Fields []string       `json:"fields" nullable:"false" doc:"of the first items' payloads, with no object or array"`
	Groups []PayloadGroup `json:"groups" nullable:"false" doc:"the most frequent first, 50 at most"`
	Others *PayloadGroup  `json:"others,omitempty" doc:"the items with other values"`
}

// PayloadGroup is the items that share a value, over all steps.
type PayloadGroup struct {
	Value      *string `json:"value" doc:"its first 200 characters; null where there is no such field, or null in it"`
	Values     int     `json:"values,omitempty" doc:"how many values the group of the rest has"`
	Items      int64   `json:"items"`
	Done       int64   `json:"done"`
	Failed     int64   `json:"failed"`
	InProgress int64   `json:"in_progress" doc:"in flight, or to be retried"`
}

func (g *PayloadGroup) add(state ItemState) {
	g.Items++
	switch state {
	case ItemDone:
		g.Done++
	case ItemFailed:
		g.Failed++
	case ItemInFlight, ItemScheduled:
		g.InProgress++
	}
}

// Payloads of the first items, by the primary key.
const firstPayloads = `
SELECT payload FROM work_queue WHERE run_id = $1 AND ordinal < 20 AND octet_length(payload) <= 65536 ORDER BY ordinal`

const maxFields = 50

// PayloadFields lists the fields by which the items of a run can be grouped, according to its first items, and the
// number of items. The error wraps ErrNotFound if the run does not exist.
func (s Store) PayloadFields(ctx context.Context, run workqueue.RunID) (*PayloadGroups, error) {
	items, err := New(s.db).ItemsOf(ctx, run, nil)
	if err != nil {
		return nil, err
	}
	seal, err := s.db.Seal(ctx, s.db.Pool, run)
	fields := []string{}
	if err == nil && seal == nil {
		fields, err = s.readFields(ctx, run)
	}
	return &PayloadGroups{Items: items, Fields: fields, Groups: []PayloadGroup{}},
		pg.Wrap(err, "find fields of the payloads of run %s", run)
}

func (s Store) readFields(ctx context.Context, run workqueue.RunID) ([]string, error) {
	rows := pg.Rows(ctx, s.db.Pool, firstPayloads, run)
	seen := map[string]bool{}
	var payload []byte
	_, err := pgx.ForEachRow(rows, []any{&payload}, func() error {
		var fields map[string]json.RawMessage
		if json.Unmarshal(payload, &fields) != nil {
			return nil //nolint:nilerr // only objects have fields
		}
		for name, value := range fields {
			if name != "" && len(name) <= MaxFieldName && value[0] != '{' && value[0] != '[' {
				seen[name] = true
			}
		}
		return nil
	})
	names := slices.Sorted(maps.Keys(seen))
	return append([]string{}, names[:min(len(names), maxFields)]...), err
}

const inOrder = `SELECT EXISTS (SELECT FROM run_order WHERE run_id = $1)`

// GroupsBy counts the items of a run, as of one moment, by the value of a field of their payloads, or by lane if field
// is empty. One statement reads all planes. The first call for a field also reads the payloads; they are never
// rewritten. The error may be a *GroupingError.
func (s Store) GroupsBy(ctx context.Context, run workqueue.RunID, field string) (*PayloadGroups, error) {
	out, err := s.PayloadFields(ctx, run)
	if err != nil {
		return nil, err
	}
	out.By = cmp.Or(field, "lane")
	if seal, err := s.db.Seal(ctx, s.db.Pool, run); err != nil || seal != nil && field != "" {
		return nil, cmp.Or(err, error(&GroupingError{"the items cannot be grouped by a field: they are encrypted"}))
	}
	if field == "" {
		ordered, err := pg.One(ctx, s.db.Pool, pgx.RowTo[bool], inOrder, run)
		if err == nil && !ordered {
			err = &GroupingError{"the run has no lanes: its plan has no order_by"}
		}
		if err != nil {
			return nil, err
		}
	}
	err = s.grouped(ctx, run, field, out.Items, func(f *fieldGroups) error {
		rank, order := f.ranks()
		groups := make([]PayloadGroup, MaxPayloadGroups+1)
		err := s.count(ctx, run, f.of[:out.Items], rank, groups)
		for i, value := range order[:min(len(order), MaxPayloadGroups)] {
			if value > 0 {
				groups[i].Value = &f.values[value-1]
			}
			out.Groups = append(out.Groups, groups[i])
		}
		if len(order) > MaxPayloadGroups {
			out.Others = &groups[MaxPayloadGroups]
			out.Others.Values = len(order) - MaxPayloadGroups
		}
		return err
	})
	return out, pg.Wrap(err, "group the items of run %s by %q", run, out.By)
}

// count counts the states of items over all steps. of is the value of each item, and rank the group of each value.
func (s Store) count(ctx context.Context, run workqueue.RunID, of []uint16, rank []byte, groups []PayloadGroup) error {
	blocks := make([]workqueue.Block, (len(of)+bitfield.Size-1)/bitfield.Size)
	for i := range blocks {
		blocks[i] = workqueue.Block(i)
	}
	return New(s.db).States(ctx, run, []string{""}, blocks, func(b BlockStates) error {
		here := of[int(b.Block)*bitfield.Size:]
		for i, state := range b.States[0][:min(len(here), len(b.States[0]))] {
			groups[rank[here[i]]].add(state)
		}
		return nil
	})
}

// GroupPlane returns, for some blocks, a byte for each item: its group in [Store.GroupsBy], or 50 for other values.
func (s Store) GroupPlane(ctx context.Context, run workqueue.RunID, field string, from workqueue.Block, blocks int,
) (*Planes, error) {
	known, err := s.PayloadFields(ctx, run)
	if err != nil {
		return nil, err
	}
	out := &Planes{Items: known.Items, Blocks: int((known.Items + bitfield.Size - 1) / bitfield.Size)}
	err = s.grouped(ctx, run, field, known.Items, func(f *fieldGroups) error {
		rank, _ := f.ranks()
		first := min(int64(from)*bitfield.Size, known.Items)
		last := min(first+int64(min(blocks, MaxPlaneBlocks))*bitfield.Size, known.Items)
		out.Bytes = make([]byte, last-first)
		for i, value := range f.of[first:last] {
			out.Bytes[i] = rank[value]
		}
		return nil
	})
	return out, pg.Wrap(err, "group the items of run %s by %q", run, field)
}

// Bounds of grouping.
const (
	MaxFieldName    = 200      // bytes
	MaxGroupedItems = 16 << 20 // of a run

	maxFieldValues = 1<<16 - 1 // distinct ones
	maxGroupings   = 4         // cached, at some tens of megabytes each
	groupingPage   = 1 << 17   // items read by one statement
)

// GroupingError says why the items of a run cannot be grouped.
type GroupingError struct{ Why string }

func (e *GroupingError) Error() string { return e.Why }

// groupsCache keeps the value of each item for the fields viewed last. Only new and corrected items are read again.
type groupsCache struct {
	mu      sync.Mutex
	entries []*fieldGroups // the last viewed is last
}

type fieldGroups struct {
	run    workqueue.RunID
	field  string // of the payloads; empty: the lane
	turn   turns
	of     []uint16 // by ordinal: 0 for none, else 1 + the index in values
	values []string
	index  map[string]uint16
	counts []int64              // by value, as in of
	known  workqueue.Generation // generation of the last correction in of
	erased int                  // erasures in the run before of was read
	wrong  error                // a GroupingError, for too many values; the field is not read again
}

func (c *groupsCache) of(run workqueue.RunID, field string) *fieldGroups {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := slices.IndexFunc(c.entries, func(f *fieldGroups) bool { return f.run == run && f.field == field })
	if at >= 0 {
		f := c.entries[at]
		c.entries = append(slices.Delete(c.entries, at, at+1), f)
		return f
	}
	f := &fieldGroups{
		run: run, field: field, turn: make(turns, 1), index: map[string]uint16{}, counts: make([]int64, 1),
	}
	// An entry in use stays: its reader would have to start again.
	if c.entries = append(c.entries, f); len(c.entries) > maxGroupings {
		rests := func(f *fieldGroups) bool { return len(f.turn) == 0 }
		if at := slices.IndexFunc(c.entries[:len(c.entries)-1], rests); at >= 0 {
			c.entries = slices.Delete(c.entries, at, at+1)
		}
	}
	return f
}

// grouped calls do with the field's values, complete for that many items. One caller at a time holds a field.
func (s Store) grouped(ctx context.Context, run workqueue.RunID, field string, items int64, do func(*fieldGroups) error,
) error {
	if items > MaxGroupedItems {
		return &GroupingError{fmt.Sprintf("the run has %d items, and only runs of %d at most are grouped", items,
			MaxGroupedItems)}
	}
	f := database.Kept[groupsCache](s.db).of(run, field)
	if err := f.turn.take(ctx); err != nil {
		return err
	}
	defer func() { <-f.turn }()
	if f.wrong != nil {
		return f.wrong
	}
	if err := f.correct(ctx, s.db); err != nil {
		return err
	}
	for int64(len(f.of)) < items { // what was read stays, even if the time runs out
		if err := f.read(ctx, s.db, items); err != nil {
			return err
		}
	}
	return do(f)
}

// fieldValue is the field's text.
const fieldValue = `left((CASE WHEN strpos(payload, '\u0000') = 0 THEN payload
    ELSE regexp_replace(payload, ` + pg.EscapedNUL + `) END)::json
    ->> $2::text, 200)`

// Ranges of primary keys.
const (
	payloadValues = `
SELECT ordinal, ` + fieldValue + ` FROM work_queue WHERE run_id = $1 AND ordinal >= $3 AND ordinal < $4`

	laneValues = `
SELECT ordinal, lane::text FROM work_order
WHERE run_id = $1 AND $2::text = '' AND ordinal >= $3 AND ordinal < $4`
)

const (
	lastCorrection = `
SELECT coalesce(max(generation), 0), coalesce((SELECT erased FROM batchrun WHERE id = $1), 0)
FROM run_correction WHERE run_id = $1`

	// correctedValues is the items among those read that were corrected since.
	correctedValues = `
SELECT ordinal, ` + fieldValue + ` FROM work_queue
WHERE run_id = $1 AND ordinal < $4
    AND ordinal IN (SELECT ordinal FROM work_correction WHERE run_id = $1 AND generation > $3)`
)

// correct rereads items corrected since they were read. It looks up the last correction before reading items: a
// concurrent one may be read twice, but is never missed.
func (f *fieldGroups) correct(ctx context.Context, db *database.DB) error {
	var last workqueue.Generation
	var erased int
	if err := db.Pool.QueryRow(ctx, lastCorrection, f.run).Scan(&last, &erased); err != nil {
		return err
	}
	if erased != f.erased { // nothing of what was erased may stay
		f.of, f.values, f.index, f.counts, f.erased = nil, nil, map[string]uint16{}, make([]int64, 1), erased
	}
	if last == f.known {
		return nil
	}
	if len(f.of) > 0 && f.field != "" { // corrections do not change lanes
		rows := pg.Rows(ctx, db.Pool, correctedValues, f.run, f.field, f.known, len(f.of))
		var ordinal int
		var value *string
		_, err := pgx.ForEachRow(rows, []any{&ordinal, &value}, func() error {
			place, err := f.place(value)
			if err != nil {
				return err
			}
			f.counts[f.of[ordinal]]--
			f.of[ordinal] = place
			f.counts[place]++
			return nil
		})
		if err != nil {
			return err
		}
	}
	f.known = last
	return nil
}

func (f *fieldGroups) read(ctx context.Context, db *database.DB, items int64) error {
	first := len(f.of)
	last := min(first+groupingPage, int(items))
	values := payloadValues
	if f.field == "" {
		values = laneValues
	}
	rows := pg.Rows(ctx, db.Pool, values, f.run, f.field, first, last)
	page := make([]uint16, last-first) // items deleted by retention have no value
	var ordinal int
	var value *string
	_, err := pgx.ForEachRow(rows, []any{&ordinal, &value}, func() (err error) {
		page[ordinal-first], err = f.place(value)
		return err
	})
	if err != nil {
		return err
	}
	for _, value := range page {
		f.counts[value]++
	}
	f.of = append(f.of, page...)
	return nil
}

func (f *fieldGroups) place(value *string) (uint16, error) {
	if value == nil {
		return 0, nil
	}
	place, known := f.index[*value]
	if !known {
		if len(f.values) == maxFieldValues {
			f.wrong = &GroupingError{fmt.Sprintf("field %.60q has more than %d different values; choose one that has fewer",
				f.field, maxFieldValues)}
			if f.field == "" {
				f.wrong = &GroupingError{fmt.Sprintf("the run has more than %d lanes", maxFieldValues)}
			}
			f.values, f.index, f.of = nil, nil, nil
			return 0, f.wrong
		}
		f.values = append(f.values, *value)
		f.counts = append(f.counts, 0)
		place = uint16(len(f.values))
		f.index[*value] = place
	}
	return place, nil
}

// ranks returns the group of each value, and the values by descending frequency.
func (f *fieldGroups) ranks() (rank []byte, order []uint16) {
	for value, count := range f.counts {
		if count > 0 {
			order = append(order, uint16(value))
		}
	}
	text := func(value uint16) string {
		if value == 0 {
			return ""
		}
		return f.values[value-1]
	}
	slices.SortFunc(order, func(a, b uint16) int {
		return cmp.Or(cmp.Compare(f.counts[b], f.counts[a]), cmp.Compare(text(a), text(b)), cmp.Compare(a, b))
	})
	rank = make([]byte, len(f.counts))
	for i, value := range order {
		rank[value] = byte(min(i, MaxPayloadGroups))
	}
	return rank, order
}
