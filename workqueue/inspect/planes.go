package inspect

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// ItemState says where an item is, in one byte: at a step, or over all steps.
type ItemState = byte

// The states of items. The numbers are part of the API.
const (
	ItemWaiting   ItemState = iota // for a step before, or to be loaded
	ItemHeld                       // held back by a canary, or in line behind another item
	ItemReady                      // may be asked for
	ItemScheduled                  // waits to be tried again
	ItemInFlight                   // asked for and not answered
	ItemDone                       // has a result
	ItemFailed                     // has an error that is final
	ItemSkipped                    // left out: a step that it needs has failed for it
	ItemStale                      // has a result, and what that was made from is being made again
)

// Layer is what the bytes of [Planes] say of items.
type Layer string

// The layers.
const (
	LayerState    Layer = "state"    // an ItemState
	LayerAttempts Layer = "attempts" // how often it was asked for since it was last ready, up to 255
	LayerLatency  Layer = "latency"  // how long the request took that brought its outcome, 0 for none: see [TimeCode]
	LayerAge      Layer = "age"      // how long ago it last moved: see [TimeCode]
)

// MaxPlaneBlocks bounds the blocks of one PlanesRequest.
const MaxPlaneBlocks = 128

// PlanesRequest says which items to look at, and what at.
type PlanesRequest struct {
	Run    workqueue.RunID
	Step   string // empty: over all steps
	Layer  Layer  // empty: LayerState
	From   workqueue.Block
	Blocks int // at most MaxPlaneBlocks; what lies behind the last item is left out
}

// Planes is one byte for each item, in the order of the items.
type Planes struct {
	Items  int64 // that the run has
	Blocks int   // likewise
	Bytes  []byte
}

// planeItems is how many items the run has, by the primary key.
const planeItems = `SELECT items FROM batchrun WHERE id = $1`

// Planes looks at the items of some blocks, as they are at one moment. The error wraps ErrNotFound when there is no
// such run or step.
func (s Store) Planes(ctx context.Context, req PlanesRequest) (*Planes, error) {
	var out *Planes
	err := s.db.Snapshot(ctx, func(tx pgx.Tx) (err error) {
		out, err = s.planes(ctx, tx, &req)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look at the items of run %s: %w", req.Run, err)
	}
	return out, nil
}

func (s Store) planes(ctx context.Context, tx pgx.Tx, req *PlanesRequest) (*Planes, error) {
	g, err := database.Kept[plane.GraphCache](s.db).Of(ctx, tx, req.Run)
	if err != nil {
		return nil, err
	}
	view, err := g.View(req.Step)
	if err != nil {
		return nil, err
	}
	out := &Planes{}
	if err := tx.QueryRow(ctx, planeItems, req.Run).Scan(&out.Items); err != nil {
		return nil, err
	}
	out.Blocks = int((out.Items + bitfield.Size - 1) / bitfield.Size)
	last := min(int64(req.From)+int64(min(req.Blocks, MaxPlaneBlocks)), int64(out.Blocks))
	if int64(req.From) >= last {
		return out, nil
	}
	first := int64(req.From) * bitfield.Size
	out.Bytes = make([]byte, min(last*bitfield.Size, out.Items)-first)
	blocks := make([]workqueue.Block, 0, last-int64(req.From))
	for b := req.From; int64(b) < last; b++ {
		blocks = append(blocks, b)
	}
	at := func(b workqueue.Block) []byte { return out.Bytes[int64(b)*bitfield.Size-first:] }
	if req.Layer != LayerState && req.Layer != "" {
		return out, readTrails(ctx, tx, req, g, view, blocks, at)
	}
	return out, eachColumn(ctx, tx, req.Run, g, view.Reads, blocks, func(c *planeColumn) error {
		c.states(view, at(c.block))
		return nil
	})
}
