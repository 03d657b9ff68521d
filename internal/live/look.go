package live

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

const (
	// outagePause is the polling interval while the database does not respond.
	outagePause = time.Second
	// lookTimeout limits one statement of a poll.
	lookTimeout = 10 * time.Second
	// easeFactor is the minimum ratio of pause to duration of a poll, so that slow polls do not overload the database.
	easeFactor = 3
	// maxSettled limits the blocks sent in full after one poll.
	maxSettled = 256
)

func (h *hub) look(ctx context.Context, kick chan<- struct{}) {
	for {
		begun := time.Now()
		moved, err := h.lookOnce(ctx)
		pause := max(h.hubs.config.PollInterval, easeFactor*time.Since(begun))
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, workqueue.ErrNotFound):
			h.mu.Lock()
			h.fail(err)
			h.mu.Unlock()
			return
		case err != nil:
			h.report(err)
			pause = outagePause
		default:
			h.report(nil)
			if moved {
				poke(kick)
			} else if h.rests() {
				pause = max(pause, h.hubs.config.RestedInterval)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-h.hurry:
		case <-time.After(pause):
		}
	}
}

func poke(kick chan<- struct{}) {
	select {
	case kick <- struct{}{}:
	default:
	}
}

func (h *hub) lookOnce(ctx context.Context) (moved bool, err error) {
	timed, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	marks, err := h.hubs.source.Marks(timed, h.run)
	if err != nil {
		return false, err
	}
	names, blocks, fresh, changed := h.due(&marks)
	if len(names) > 0 {
		for part := range slices.Chunk(blocks, inspect.MaxPlaneBlocks) {
			if err := h.readStates(ctx, names, part); err != nil {
				return false, err
			}
		}
	}
	return h.conclude(&marks, names, changed, fresh), nil
}

func (h *hub) due(marks *inspect.RunMarks) (
	names []string, blocks []workqueue.Block, fresh []*view, changed bool,
) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, v := range h.views {
		if v.watchers == 0 && (!v.loaded || time.Since(v.idle) > DefaultLinger) {
			delete(h.views, name)
			continue
		}
		names = append(names, name)
		if !v.loaded {
			fresh = append(fresh, v)
		}
	}
	now := time.Now()
	for _, m := range marks.Blocks {
		known, seen := h.marks[m.Block]
		if !seen || known != m.Mark {
			h.resting[m.Block], changed = now, true
			if len(names) == 0 {
				h.marks[m.Block] = m.Mark
			}
		} else if len(fresh) == 0 {
			continue
		}
		blocks = append(blocks, m.Block)
	}
	return names, blocks, fresh, changed
}

func (h *hub) readStates(ctx context.Context, names []string, blocks []workqueue.Block) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	all := make([]Changes, len(names))
	err := h.hubs.source.States(ctx, h.run, names, blocks, func(b inspect.BlockStates) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		for i, name := range names {
			if v := h.views[name]; v != nil {
				all[i] = v.take(b.Block, b.States[i], all[i])
			}
		}
		h.marks[b.Block] = b.Mark
		return nil
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.publish(names, all) // what was read is sent even if the rest failed
	return err
}

func (h *hub) conclude(marks *inspect.RunMarks, names []string, changed bool, fresh []*view) (moved bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	moved = changed || marks.Run != h.runMark || h.moves == 0
	h.items, h.ended, h.runMark = marks.Items, marks.Ended, marks.Run
	for _, v := range fresh {
		v.loaded, v.since = true, h.seq
	}
	if moved {
		h.moves++
		h.over = 0
	}
	h.settle(names, marks.Ended && !changed)
	if h.ended && !moved && h.over == 0 && len(h.resting) == 0 && h.document.moves == h.moves {
		h.over = h.next()
	}
	h.wake()
	return moved
}

// settle sends blocks that have come to rest in full. A change that was undone between two polls is invisible to
// them, but a client may have read the planes in between.
func (h *hub) settle(names []string, atOnce bool) {
	var rested []workqueue.Block
	for block, at := range h.resting {
		if atOnce || time.Since(at) >= h.hubs.config.Settle {
			rested = append(rested, block)
		}
	}
	slices.Sort(rested)
	if len(rested) > maxSettled {
		rested = rested[:maxSettled]
	}
	all := make([]Changes, len(names))
	for _, block := range rested {
		delete(h.resting, block)
		for i, name := range names {
			if v := h.views[name]; v != nil && int(block) < len(v.blocks) {
				all[i] = v.blocks[block].whole(0, bitfield.Size, first(block), all[i])
			}
		}
	}
	h.publish(names, all)
}

func (h *hub) publish(names []string, all []Changes) {
	for i, name := range names {
		if len(all[i]) > 0 {
			h.ring.add(entry{seq: h.next(), view: name, changes: all[i]})
		}
	}
}

func (h *hub) rests() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ended && len(h.resting) == 0
}

func (h *hub) report(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := h.outage != nil && !h.outage.OK
	switch {
	case err != nil && !out:
		h.outage = &Database{Since: time.Now(), Detail: h.hubs.config.Explain(err)}
		h.hubs.config.Log.Warn("watchers get no updates: the database does not answer", zap.Stringer("run", h.run),
			zap.Error(err))
	case err == nil && out:
		h.outage = &Database{OK: true, Since: time.Now()}
	default:
		return
	}
	h.outageAt = h.next()
	h.wake()
}
