package start

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const (
	batchRows  = 4 * bitfield.Size
	batchBytes = 4 << 20
)

// itemBatch holds a few blocks of items for work_queue in one piece of memory.
type itemBatch struct {
	base    int // ordinal of the first
	rows    []itemRow
	arena   []byte
	skipped int64 // duplicates removed
	copy    pg.CopyRows
}

// itemRow is an item in the arena: its key is in [start, mid), its payload in [mid, end).
type itemRow struct {
	start, mid, end, line int
	lane                  int64  // if the run has lanes
	invalid               string // why it fails; empty: it is valid
}

func (b *itemBatch) reset(base int) {
	b.base, b.rows, b.arena, b.skipped = base, b.rows[:0], b.arena[:0], 0
}

func (b *itemBatch) add(item *LoadItem, lane int64) {
	row := itemRow{start: len(b.arena), line: item.Line, lane: lane, invalid: item.Invalid}
	b.arena = append(b.arena, item.Key...)
	row.mid = len(b.arena)
	b.arena = append(b.arena, item.Payload...)
	row.end = len(b.arena)
	b.rows = append(b.rows, row)
}

func (b *itemBatch) key(row itemRow) []byte     { return b.arena[row.start:row.mid] }
func (b *itemBatch) payload(row itemRow) []byte { return b.arena[row.mid:row.end] }

func (b *itemBatch) sealed(row itemRow, seal *database.Seal) []byte {
	if seal == nil { // spares the place
		return b.payload(row)
	}
	return seal.Text(database.PayloadOf(b.key(row)), b.payload(row))
}

func (b *itemBatch) keys() []string {
	keys := make([]string, len(b.rows))
	for i, row := range b.rows {
		keys[i] = string(b.key(row))
	}
	return keys
}

const (
	copyItems = `COPY work_queue (run_id, ordinal, key_ordinal, item_key, payload) FROM STDIN (FORMAT binary)`

	// insertItems is for a few items: unlike COPY it can share a round trip.
	insertItems = `
INSERT INTO work_queue (run_id, ordinal, key_ordinal, item_key, payload)
SELECT u.run, u.ordinal, u.key_ordinal, u.key, u.payload
FROM unnest($1::uuid[], $2::int[], $3::int[], $4::text[], $5::text[]) AS u (run, ordinal, key_ordinal, key, payload)`
)

// put writes a batch to work_queue. With DuplicateSkip it removes known keys first and renumbers the rest.
func (l *loader) put(ctx context.Context, tx pgx.Tx, b *itemBatch) error {
	if l.req.OnDuplicate == DuplicateSkip {
		if err := l.skipKnown(ctx, tx, b); err != nil {
			return err
		}
		b.base = int(l.items)
	}
	if !l.keyed {
		seal, err := l.store.Seal(ctx, tx, l.run)
		if err != nil {
			return err
		}
		l.cipher, l.keyed = seal, true
	}
	if l.whole && pg.TooFewForCopy(len(b.rows), len(b.arena)) {
		if err := l.insert(ctx, tx, b); err != nil {
			return err
		}
	} else if err := l.copy(ctx, tx, b); err != nil {
		return err
	}
	if l.req.Order != nil {
		return l.putLanes(ctx, tx, b)
	}
	return nil
}

// insert queues a few items with the next statement; see [itemBatch.refused] for duplicates.
func (l *loader) insert(ctx context.Context, tx pgx.Tx, b *itemBatch) error {
	ordinals, twins := make([]int32, len(b.rows)), make([]int32, len(b.rows))
	keys, payloads := b.keys(), make([]string, len(b.rows))
	for i, row := range b.rows {
		ordinals[i], payloads[i] = int32(b.base+i), string(b.sealed(row, l.cipher))
		if l.req.OnDuplicate == DuplicateAllow {
			twins[i] = ordinals[i]
		}
	}
	return pg.JoinOne(ctx, tx, insertItems, slices.Repeat([]workqueue.RunID{l.run}, len(b.rows)), ordinals, twins, keys,
		payloads)
}

// refused converts a violation of the key index.
func (b *itemBatch) refused(err error) error {
	if pg.IsUniqueViolation(err, "work_queue_key") {
		return &duplicateInBatchError{batch: b, cause: err}
	}
	return err
}

func (l *loader) copy(ctx context.Context, tx pgx.Tx, b *itemBatch) error {
	b.copy.Reset()
	for i, row := range b.rows {
		ordinal := int32(b.base + i)
		twin := int32(0)
		if l.req.OnDuplicate == DuplicateAllow {
			twin = ordinal
		}
		b.copy.Row(5)
		b.copy.UUID(l.run)
		b.copy.Int4(ordinal)
		b.copy.Int4(twin)
		b.copy.Bytes(b.key(row))
		b.copy.Bytes(b.sealed(row, l.cipher))
	}
	if err := b.copy.Send(ctx, tx, copyItems); err != nil {
		return b.refused(fmt.Errorf("write items %d to %d: %w", b.base, b.base+len(b.rows)-1, err))
	}
	return nil
}

const (
	keyShares     = 1024    // keys are checked one share at a time
	keyShareBytes = 8 << 10 // of a share in memory
)

// keyLog finds duplicate keys exactly, in memory that does not grow with their number: keys are divided into shares
// by hash, and what exceeds memory goes to an unlinked file. For one goroutine.
type keyLog struct {
	dir    string // of the file; empty: the system's
	seed   maphash.Seed
	shares [keyShares]keyShare
	file   *os.File // nil while memory suffices
	end    int64
}

type keyShare struct {
	recent []byte
	at     []int64 // offsets in the file; lengths are in pieces
	pieces []int32
}

type keyEntry struct {
	key     []byte
	ordinal int
	line    int
	size    int // of the payload
}

type duplicateKeys struct {
	items int64 // without the first of each key
	bytes int64 // of their payloads
	first *workqueue.DuplicateKeyError
}

func (k *keyLog) add(e keyEntry) error {
	share := &k.shares[maphash.Bytes(k.seed, e.key)%keyShares]
	share.recent = binary.AppendUvarint(share.recent, uint64(len(e.key)))
	share.recent = append(share.recent, e.key...)
	for _, n := range [...]int{e.ordinal, e.line, e.size} {
		share.recent = binary.AppendUvarint(share.recent, uint64(n))
	}
	if len(share.recent) < keyShareBytes {
		return nil
	}
	return k.flush(share)
}

func (k *keyLog) flush(share *keyShare) error {
	if err := k.open(); err != nil {
		return fmt.Errorf("keep keys in a file: %w", err)
	}
	if _, err := k.file.WriteAt(share.recent, k.end); err != nil {
		return fmt.Errorf("keep keys in a file: %w", err)
	}
	share.at, share.pieces = append(share.at, k.end), append(share.pieces, int32(len(share.recent)))
	k.end += int64(len(share.recent))
	share.recent = share.recent[:0]
	return nil
}

// open creates the file and unlinks it immediately.
func (k *keyLog) open() (err error) {
	if k.file != nil {
		return nil
	}
	if k.dir != "" {
		if err := os.MkdirAll(k.dir, 0o700); err != nil {
			return err
		}
	}
	if k.file, err = os.CreateTemp(k.dir, "tranche-keys-"); err != nil {
		return err
	}
	return os.Remove(k.file.Name())
}

// twins finds duplicate keys. Its first is the first duplicate in item order.
func (k *keyLog) twins() (found duplicateKeys, err error) {
	for i := range k.shares {
		known := map[string]keyEntry{}
		err := k.each(&k.shares[i], func(e keyEntry) {
			first, twice := known[string(e.key)]
			if !twice {
				known[string(e.key)] = keyEntry{ordinal: e.ordinal, line: e.line} // the key's bytes are reused
				return
			}
			found.items++
			found.bytes += int64(e.size)
			if found.first == nil || workqueue.Ordinal(e.ordinal) < found.first.Second {
				found.first = &workqueue.DuplicateKeyError{Key: string(e.key), First: workqueue.Ordinal(first.ordinal),
					Second: workqueue.Ordinal(e.ordinal), FirstLine: first.line, SecondLine: e.line}
			}
		})
		if err != nil {
			return duplicateKeys{}, err
		}
	}
	return found, nil
}

func (k *keyLog) each(share *keyShare, yield func(keyEntry)) error {
	piece := make([]byte, 0, keyShareBytes)
	for i, at := range share.at {
		piece = append(piece[:0], make([]byte, share.pieces[i])...)
		if _, err := k.file.ReadAt(piece, at); err != nil {
			return fmt.Errorf("read keys back: %w", err)
		}
		if err := eachEntry(piece, yield); err != nil {
			return err
		}
	}
	return eachEntry(share.recent, yield)
}

func eachEntry(piece []byte, yield func(keyEntry)) error {
	for r := bytes.NewReader(piece); r.Len() > 0; {
		var n [3]uint64
		length, err := binary.ReadUvarint(r)
		start := len(piece) - r.Len()
		if err == nil {
			_, err = r.Seek(int64(length), io.SeekCurrent)
		}
		for i := range n {
			if err == nil {
				n[i], err = binary.ReadUvarint(r)
			}
		}
		if err != nil {
			return fmt.Errorf("read keys back: %w", err)
		}
		yield(keyEntry{piece[start : start+int(length)], int(n[0]), int(n[1]), int(n[2])})
	}
	return nil
}

func (k *keyLog) close() error {
	if k.file == nil {
		return nil
	}
	if err := k.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("keep keys in a file: %w", err)
	}
	return nil
}
