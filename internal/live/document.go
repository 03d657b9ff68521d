package live

import (
	"bytes"
	"context"
	"time"

	"go.uber.org/zap"
)

const (
	// documentPause is the shortest time between two documents of a run.
	documentPause = time.Second / 2
	// documentAge is the longest while a run is under way: its rate and its warnings change by themselves.
	documentAge = 3 * time.Second
)

// keepDocument makes a document of the run at once, whenever something has changed, and now and then.
func (h *hub) keepDocument(ctx context.Context, kick <-chan struct{}) {
	for {
		begun := time.Now()
		h.makeDocument(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(documentPause, easeFactor*time.Since(begun))):
		}
		select {
		case <-ctx.Done():
			return
		case <-kick:
		case <-h.age():
		}
	}
}

// age ends when a document has grown old: never that of a run that has ended.
func (h *hub) age() <-chan time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended && h.document.moves == h.moves {
		return nil
	}
	return time.After(documentAge)
}

func (h *hub) makeDocument(ctx context.Context) {
	h.mu.Lock()
	moves := h.moves
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	json, err := h.hubs.config.Document(ctx, h.run)
	if err != nil {
		if ctx.Err() == nil {
			h.hubs.config.Log.Warn("a run cannot be shown to its watchers", zap.Stringer("run", h.run), zap.Error(err))
		}
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.document.moves = moves
	if !bytes.Equal(json, h.document.json) {
		h.document.json, h.document.seq = json, h.next()
	}
	h.tell()
}
