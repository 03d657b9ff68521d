package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// MaxPayloadGroups bounds the values that are told apart. Items with others are in one group more, the last.
const MaxPayloadGroups = 50

// PayloadGroups is the items of a run by the value of one field of their payloads.
type PayloadGroups struct {
	By     string         `json:"by,omitempty" doc:"the field, or lane"`
	Items  int64          `json:"items" doc:"that the run has"`
	Fields []string       `json:"fields" nullable:"false" doc:"of the first items' payloads, with no object or array"`
	Groups []PayloadGroup `json:"groups" nullable:"false" doc:"the most frequent first, 50 at the most"`
	Others *PayloadGroup  `json:"others,omitempty" doc:"the items with other values"`
}

// PayloadGroup is the items that share a value, over all steps.
type PayloadGroup struct {
	Value      *string `json:"value" doc:"its first 200 characters; null where there is no such field, or null in it"`
	Values     int     `json:"values,omitempty" doc:"how many values, of the others"`
	Items      int64   `json:"items"`
	Done       int64   `json:"done"`
	Failed     int64   `json:"failed"`
	InProgress int64   `json:"in_progress" doc:"asked for, or to be tried again"`
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

// maxFields bounds the fields that are offered.
const maxFields = 50

// PayloadFields lists the fields by which the items of a run can be grouped, as the first of them have them, and how
// many items there are. The error wraps ErrNotFound when there is no such run.
func (s Store) PayloadFields(ctx context.Context, run workqueue.RunID) (*PayloadGroups, error) {
	items, err := New(s.db).ItemsOf(ctx, run, nil)
	if err != nil {
		return nil, err
	}
	fields, err := s.readFields(ctx, run)
	if err != nil {
		return nil, fmt.Errorf("find fields of the payloads of run %s: %w", run, err)
	}
	return &PayloadGroups{Items: items, Fields: fields, Groups: []PayloadGroup{}}, nil
}

func (s Store) readFields(ctx context.Context, run workqueue.RunID) ([]string, error) {
	rows := pg.Rows(ctx, s.db.Pool, firstPayloads, run)
	seen := map[string]bool{}
	var payload []byte
	_, err := pgx.ForEachRow(rows, []any{&payload}, func() error {
		var fields map[string]json.RawMessage
		if json.Unmarshal(payload, &fields) != nil {
			return nil //nolint:nilerr // what is no object has no fields
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

// GroupsBy counts the items of a run, as they are at one moment, by the value of a field of their payloads, or by lane
// if field is empty: all their planes are read by one statement. The first look at a field reads the payloads, too:
// they are never written again. The error wraps ErrNotFound when there is no such run, and is a *GroupingError when it
// cannot be grouped so.
func (s Store) GroupsBy(ctx context.Context, run workqueue.RunID, field string) (*PayloadGroups, error) {
	out, err := s.PayloadFields(ctx, run)
	if err != nil {
		return nil, err
	}
	out.By = cmp.Or(field, "lane")
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
	if err != nil {
		return nil, fmt.Errorf("group the items of run %s by %q: %w", run, out.By, err)
	}
	return out, nil
}

// count counts the states of items over all steps. of has the value of each item, and rank the group of a value.
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

// GroupPlane says of each item of some blocks, in a byte, in which group of [Store.GroupsBy] it is; the others are in
// group 50. It fails as that does.
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
	if err != nil {
		return nil, fmt.Errorf("group the items of run %s by %q: %w", run, field, err)
	}
	return out, nil
}
