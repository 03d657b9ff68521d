package workqueue

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/tranchehq/tranche/bitfield"
)

// Item is an item as it goes into a request. Its memory belongs to the driver and is valid only during the call that
// gets it.
type Item struct {
	Ordinal Ordinal
	Key     []byte
	Payload []byte // JSON
}

const readItems = `
SELECT ordinal, item_key, payload FROM work_queue
WHERE run_id = $1 AND ordinal >= $2 AND ordinal < $3
ORDER BY ordinal`

// EachItem calls f with the items of a mask in one block, in order, until f returns false. It reads the range that the
// mask spans and leaves out what lies between its members.
func (s *Store) EachItem(ctx context.Context, run RunID, block Block, mask *bitfield.Set, f func(Item) bool) error {
	lo, hi := mask.Bounds()
	rows, err := s.pool.Query(ctx, readItems, run, block.Ordinal(lo), block.Ordinal(hi))
	if err != nil {
		return fmt.Errorf("read items of run %s block %d: %w", run, block, err)
	}
	defer rows.Close()
	found, want := 0, mask.Count()
	for rows.Next() {
		// Raw values: scanning would copy every payload once more. pgx reads int4 and text in binary form.
		raw := rows.RawValues()
		ordinal := Ordinal(binary.BigEndian.Uint32(raw[0]))
		if _, bit := ordinal.Block(); !mask.Has(bit) {
			continue
		}
		found++
		if !f(Item{ordinal, raw[1], raw[2]}) {
			return nil
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read items of run %s block %d: %w", run, block, err)
	}
	if found != want {
		return fmt.Errorf("read items of run %s block %d: %d of %d are in work_queue", run, block, found, want)
	}
	return nil
}
