package dispatch

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Item is an item for a request. Its memory belongs to the driver and is valid only during the call that gets it.
type Item struct {
	Ordinal workqueue.Ordinal
	Key     []byte
	Payload []byte // JSON; nil if not requested
}

// InputRequest says what a chunk's request will carry.
type InputRequest struct {
	Run    workqueue.RunID
	Block  workqueue.Block
	Mask   *bitfield.Set
	Step   string                // the chunk's, for messages
	Inputs []workqueue.StepInput // steps whose parts are included
	NoItem bool                  // without payloads
}

// Input is an item with its parts, whose memory has the same lifetime.
type Input struct {
	Item
	Parts   []PartInput // in the order of InputRequest.Inputs
	Damaged error       // why the item cannot be read, with the remedy; nil: it can. Do not send a damaged item.
}

// PartInput is a step's newest part for an item.
type PartInput struct {
	Missing     bool // no part, or it is an error: the step is optional
	Data        []byte
	ContentType string        // empty: JSON
	Large       uuid.NullUUID // a large result, described by Ref; else Data is the result
	Ref         PartRef
	damaged     error
}

// PartRef is the size and hash of a large result.
type PartRef struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"` // in hexadecimal
}

const (
	inputItems = 1024    // read together with their parts
	inputBytes = 4 << 20 // of parts read together, except those of one item
	// leastInput is each step's least share of inputBytes.
	leastInput = 256 << 10
)

// The items between two ordinals, a scan of the primary key.
const readItems = `
SELECT ordinal, item_key, CASE WHEN $4 THEN payload END FROM work_queue
WHERE run_id = $1 AND ordinal >= $2 AND ordinal < $3
ORDER BY ordinal`

// For scattered items: a scan of each gapless range, skipping what lies between.
const readScatteredItems = `
SELECT q.ordinal, q.item_key, q.payload
FROM unnest($2::integer[], $3::integer[]) AS wanted (first, last)
CROSS JOIN LATERAL (
    SELECT ordinal, item_key, CASE WHEN $4 THEN payload END AS payload FROM work_queue
    WHERE run_id = $1 AND ordinal BETWEEN wanted.first AND wanted.last
    OFFSET 0 -- keeps it a separate walk
) AS q
ORDER BY q.ordinal`

// The newest part of each item, by backward scans of the primary key, since the newest generation is last. As in
// exportParts only as many bytes are read as may be held; upto tells whether that was all. A part of an earlier
// generation does not count if its step is now skipped, according to the block's plane, which is read once.
const readInputs = `
SELECT ordinal, CASE WHEN get_bit(coalesce((SELECT b.skipped FROM work_block b
                                            WHERE b.run_id = $1 AND b.step = $2 AND b.block = $6), B'0'::bit(8192)),
                                  ordinal % 8192) = 0 THEN result END, coalesce(content_type, ''),
    large_id, upto
FROM (
    SELECT p.*, sum(p.size) OVER (ORDER BY p.ordinal ROWS UNBOUNDED PRECEDING) AS upto
    FROM unnest($3::integer[], $4::integer[]) AS wanted (first, last)
    CROSS JOIN LATERAL (
        SELECT DISTINCT ON (ordinal) ordinal, result, content_type, coalesce(octet_length(result), 0) AS size, large_id
        FROM work_result
        WHERE run_id = $1 AND step = $2 AND ordinal BETWEEN wanted.first AND wanted.last
        ORDER BY ordinal DESC, generation DESC
    ) AS p
) AS sized
WHERE upto - size < $5
ORDER BY ordinal`

// EachInput calls f with the items of a mask in one block, in order and with their parts, until f returns false.
// Scattered items are read by ordinal, so gaps cost nothing. Items are streamed; up to 4 MiB of parts are held at
// once, or those of a single item, and at least 256 KiB for each input.
func (s Store) EachInput(ctx context.Context, want InputRequest, f func(Input) bool) error {
	seal, err := s.db.Seal(ctx, s.db.Pool, want.Run)
	if err != nil {
		return err
	}
	r := &inputReader{store: s.db, want: want, seal: seal, handle: f, rest: *want.Mask,
		bytes: pg.Arena{Most: inputBytes}}
	for !r.stopped && !r.rest.Empty() {
		if err := r.next(ctx); err != nil {
			return fmt.Errorf("read items of run %s block %d: %w", want.Run, want.Block, err)
		}
	}
	if n := want.Mask.Count(); !r.stopped && r.found != n {
		return fmt.Errorf("read items of run %s block %d: %d of %d are in work_queue", want.Run, want.Block, r.found, n)
	}
	return nil
}

// inputReader reads the items of a chunk, as many together as their parts can be held.
type inputReader struct {
	store   *database.DB
	want    InputRequest
	seal    *database.Seal
	handle  func(Input) bool
	rest    bitfield.Set // not read so far
	found   int
	stopped bool // by handle

	now        bitfield.Set  // being read
	begin, end int           // its bounds; end is reduced if the parts are too large
	parts      [][]PartInput // of each step, by index from begin
	bytes      pg.Arena      // of the parts
	types      map[string]string
}

func (r *inputReader) next(ctx context.Context) error {
	r.now = r.rest
	if len(r.want.Inputs) > 0 {
		r.now = r.rest.Take(inputItems)
	}
	r.begin, r.end = r.now.Bounds()
	first, last := r.ranges()
	batch := &pgx.Batch{}
	for _, input := range r.want.Inputs {
		batch.Queue(readInputs, r.want.Run, input.Step, first, last, r.room(), r.want.Block)
	}
	r.queueItems(batch, first, last)
	results := r.store.Pool.SendBatch(ctx, batch)
	err := r.read(results)
	if closing := results.Close(); err == nil {
		err = closing
	}
	r.rest = r.rest.AndNot(bitfield.Full(r.end))
	return err
}

func (r *inputReader) ranges() (first, last []workqueue.Ordinal) {
	for lo, hi := range r.now.Ranges() {
		first, last = append(first, r.want.Block.Ordinal(lo)), append(last, r.want.Block.Ordinal(hi-1))
	}
	return first, last
}

// room is how many bytes of a step's parts are read together.
func (r *inputReader) room() int64 { return int64(max(inputBytes/len(r.want.Inputs), leastInput)) }

// queueItems reads the whole span if most of it is wanted.
func (r *inputReader) queueItems(batch *pgx.Batch, first, last []workqueue.Ordinal) {
	payloads := !r.want.NoItem
	if 2*r.now.Count() >= r.end-r.begin {
		batch.Queue(readItems, r.want.Run, r.want.Block.Ordinal(r.begin), r.want.Block.Ordinal(r.end), payloads)
		return
	}
	batch.Queue(readScatteredItems, r.want.Run, first, last, payloads)
}

func (r *inputReader) read(results pgx.BatchResults) error {
	r.bytes.Empty()
	r.parts = make([][]PartInput, len(r.want.Inputs))
	for n := range r.want.Inputs {
		rows, err := results.Query()
		if err == nil {
			err = r.readParts(rows, n)
		}
		if err != nil {
			return fmt.Errorf("parts of step %d: %w", r.want.Inputs[n].Step, err)
		}
	}
	rows, err := results.Query()
	if err != nil {
		return err
	}
	return r.readItems(rows)
}

// readParts reads the parts of one step, by the item's place in the block.
func (r *inputReader) readParts(rows pgx.Rows, n int) error {
	_, end := r.now.Bounds() // r.end may be lower by now
	parts := make([]PartInput, end-r.begin)
	for i := range parts {
		parts[i].Missing = true
	}
	r.parts[n] = parts
	var ordinal workqueue.Ordinal
	var result, contentType pgtype.DriverBytes
	var upto int64
	var large uuid.NullUUID
	last := -1
	step := r.want.Inputs[n]
	err := pg.Each(rows, []any{&ordinal, &result, &contentType, &large, &upto}, func() {
		_, last = ordinal.Block()
		if result == nil || !r.now.Has(last) {
			return
		}
		part := PartInput{ContentType: r.typeOf(contentType), Large: large}
		var err error
		if !large.Valid {
			result, err = r.seal.OpenBytes(database.ResultOf(step.Step, ordinal), result)
			part.Data = r.bytes.Keep(result)
		} else {
			err = json.Unmarshal(result, &part.Ref)
		}
		if err != nil {
			part.damaged = damagedResult(r.want.Run, step.Name, r.want.Step, err)
		}
		parts[last-r.begin] = part
	})
	if upto >= r.room() { // there may be more
		r.end = min(r.end, last+1)
	}
	return err
}

// damagedResult is about a result that failed an item at another step.
func damagedResult(run workqueue.RunID, step, at string, err error) error {
	return fmt.Errorf("the result of step %s: %w; recompute it: tranche run reset %s --step %[1]s --failed-at %[4]s "+
		"--code item_damaged", step, err, run, at)
}

// typeOf interns a content type, since there are few.
func (r *inputReader) typeOf(raw []byte) string {
	if len(raw) == 0 {
		return ""
	}
	known, ok := r.types[string(raw)]
	if !ok {
		if known = string(raw); r.types == nil {
			r.types = map[string]string{}
		}
		r.types[known] = known
	}
	return known
}

func (r *inputReader) readItems(rows pgx.Rows) error {
	defer rows.Close()
	input := Input{Parts: make([]PartInput, len(r.parts))}
	for rows.Next() {
		// Raw values: scanning would copy every payload again. pgx reads int4 and text in binary form.
		raw := rows.RawValues()
		input.Item = Item{workqueue.Ordinal(binary.BigEndian.Uint32(raw[0])), raw[1], raw[2]}
		_, bit := input.Ordinal.Block()
		if !r.now.Has(bit) || bit >= r.end {
			continue
		}
		input.Damaged = nil
		for n := range r.parts {
			input.Parts[n] = r.parts[n][bit-r.begin]
			input.Damaged = cmp.Or(input.Damaged, input.Parts[n].damaged)
		}
		if r.seal != nil {
			var err error
			if input.Payload, err = r.seal.OpenText(database.PayloadOf(input.Key), input.Payload); err != nil {
				input.Damaged = fmt.Errorf("the payload: %w; give a new one: tranche run correct %s --items FILE", err, r.want.Run)
			}
		}
		r.found++
		if !r.handle(input) {
			r.stopped = true
			return nil
		}
	}
	return rows.Err()
}

// PartRequest requests bytes of a part on behalf of the service that works on a slice.
type PartRequest struct {
	Slice    workqueue.SliceID
	Endpoint string
	Ordinal  workqueue.Ordinal
	Step     string // whose part
	Bytes    int64  // of the part that the request referred to
	SHA256   []byte
	From     int64
	Most     int
}

// Points of primary keys, except run_step's names. The item must be in flight at the endpoint, in this slice: resets
// and corrections take it out. The hash of a part that is not in pieces is compared once, at its start. Of an encrypted
// part all is read, or the piece.
const readPart = `
SELECT s.run_id, st.name, input.step, p.large_id, coalesce(w.piece, 0), coalesce(w.before, 0), o.over > 0,
    CASE WHEN o.over > 0 THEN v.bytes ELSE substr(v.bytes, ($7 - coalesce(w.before, 0))::int + 1, $8) END
FROM work_slice s
JOIN batchrun r ON r.id = s.run_id
CROSS JOIN LATERAL (SELECT CASE WHEN r.data_key IS NULL THEN 0 ELSE $9::int END AS over) o
JOIN run_step st ON st.run_id = s.run_id AND st.step = s.step
JOIN run_step input ON input.run_id = s.run_id AND input.name = $4 AND input.step = ANY (st.inputs)
CROSS JOIN LATERAL (
    SELECT result, large_id FROM work_result
    WHERE run_id = s.run_id AND step = input.step AND ordinal = $3
    ORDER BY generation DESC LIMIT 1) p
LEFT JOIN large_result l ON l.id = p.large_id
LEFT JOIN LATERAL (
    SELECT * FROM (
        SELECT piece, bytes,
            sum(octet_length(bytes) - o.over) OVER (ORDER BY piece) - octet_length(bytes) + o.over AS before
        FROM work_piece WHERE large_id = p.large_id) c
    WHERE $7 >= c.before AND $7 < c.before + octet_length(c.bytes) - o.over) w ON true
CROSS JOIN LATERAL (SELECT CASE WHEN p.large_id IS NULL THEN p.result ELSE w.bytes END AS bytes) v
WHERE s.id = $1 AND s.state IN ('claimed', 'sent') AND coalesce(s.endpoint, st.endpoint) = $2
    AND s.block = $3 / 8192 AND get_bit(s.remaining, $3 % 8192) = 1
    AND coalesce(l.bytes, octet_length(p.result) - o.over) = $5
    AND CASE WHEN l.id IS NOT NULL THEN l.sha256 WHEN $7 = 0 AND o.over = 0 THEN sha256(p.result) ELSE $6 END = $6`

// Part returns bytes of a part, at least one. The error wraps ErrNotFound if the slice does not have the item in flight
// with this part: it may have been redone since the request was sent.
func (s Store) Part(ctx context.Context, req PartRequest) (data []byte, err error) {
	var of sealedPart
	err = s.db.Pool.QueryRow(ctx, readPart, req.Slice, req.Endpoint, req.Ordinal, req.Step, req.Bytes, req.SHA256,
		req.From, req.Most, database.SealOverhead).
		Scan(&of.run, &of.at, &of.step, &of.large, &of.piece, &of.from, &of.sealed, &data)
	if err == nil && of.sealed {
		data, err = s.open(ctx, &req, &of, data)
	}
	if errors.Is(err, database.ErrDamaged) {
		return nil, damagedResult(of.run, req.Step, of.at, err)
	}
	if errors.Is(err, pgx.ErrNoRows) || err == nil && len(data) == 0 {
		err = workqueue.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read the part of step %s for item %d in slice %s: %w", req.Step, req.Ordinal, req.Slice, err)
	}
	return data, nil
}

type sealedPart struct {
	run    workqueue.RunID
	at     string // the step that uses it
	step   workqueue.Step
	large  uuid.NullUUID
	piece  int
	from   int64 // where the piece begins
	sealed bool
}

func (s Store) open(ctx context.Context, req *PartRequest, of *sealedPart, data []byte) ([]byte, error) {
	seal, err := s.db.Seal(ctx, s.db.Pool, of.run)
	if err != nil {
		return nil, err
	}
	at := database.ResultOf(of.step, req.Ordinal)
	if of.large.Valid {
		at = database.PieceOf(of.large.UUID, of.piece)
	}
	if data, err = seal.OpenBytes(at, data); err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(data); !of.large.Valid && !bytes.Equal(sum[:], req.SHA256) {
		return nil, workqueue.ErrNotFound
	}
	data = data[min(req.From-of.from, int64(len(data))):]
	return data[:min(req.Most, len(data))], nil
}
