package access

import (
	"context"
	"crypto/sha256"
	"time"

	"go.uber.org/zap"
)

// underWay is the requests that are being served, by whose they are. It is guarded by the gate's lock.
type underWay struct {
	by    map[[sha256.Size]byte]*watched
	timer *time.Timer // to the next look; nil while nothing is under way
}

// watched is the requests of one token or session.
type watched struct {
	ends    map[*context.CancelCauseFunc]struct{}
	checked time.Time // when it was last asked whether they may go on, and they might
	noted   time.Time
}

// Admit returns the context of a request of p's: it says so, and ends when p may not go on. The caller calls done when
// the request has ended.
func (g *Gate) Admit(ctx context.Context, p Principal) (admitted context.Context, done func()) {
	admitted, cancel := context.WithCancelCause(With(ctx, p))
	g.mu.Lock()
	defer g.mu.Unlock()
	w := g.under.by[p.hash]
	if w == nil {
		w = &watched{ends: map[*context.CancelCauseFunc]struct{}{}, checked: p.checked, noted: time.Now()}
		g.under.by[p.hash] = w
	}
	w.ends[&cancel] = struct{}{}
	if g.under.timer == nil {
		g.under.timer = time.AfterFunc(recheckPause, g.recheck)
	}
	return admitted, func() {
		cancel(nil)
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(w.ends, &cancel)
		if len(w.ends) == 0 && g.under.by[p.hash] == w {
			delete(g.under.by, p.hash)
		}
		if len(g.under.by) == 0 && g.under.timer != nil {
			g.under.timer.Stop()
			g.under.timer = nil
		}
	}
}

// soon has the next look come at once.
func (u *underWay) soon(g *Gate) {
	if u.timer != nil && u.timer.Stop() {
		u.timer = time.AfterFunc(0, g.recheck)
	}
}

// recheck asks whether those whose requests are under way may go on, all of them at once, and ends the requests of the
// others.
func (g *Gate) recheck() {
	g.endUnchecked()
	hashes := g.watchedHashes()
	if len(hashes) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), recheckTime)
	defer cancel()
	asked := time.Now()
	standing, err := g.store.StandingCredentials(ctx, hashes, g.config.SessionIdle)
	if err != nil {
		g.log.Warn("whether tokens are still good cannot be found out", zap.Error(err))
	}
	unnoted := g.endOthers(hashes, standing, asked, err)
	if err == nil && len(unnoted) > 0 { // a page that is open is a use
		ctx, cancel := context.WithTimeout(context.Background(), recheckTime)
		defer cancel()
		g.note(ctx, unnoted)
	}
}

func (g *Gate) watchedHashes() (hashes [][]byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.under.by) == 0 {
		g.under.timer = nil // the next that is admitted sets one
	}
	for hash := range g.under.by {
		hashes = append(hashes, hash[:])
	}
	return hashes
}

// endOthers applies what was learned, sets the next look, and returns those whose use is to be noted.
func (g *Gate) endOthers(asked, standing [][]byte, at time.Time, err error) (unnoted [][]byte) {
	good := map[[sha256.Size]byte]bool{}
	for _, hash := range standing {
		good[[sha256.Size]byte(hash)] = true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, h := range asked {
		hash := [sha256.Size]byte(h)
		w := g.under.by[hash]
		switch {
		case w == nil:
		case err == nil && good[hash]:
			w.checked = at
			if time.Since(w.noted) > noteTime {
				w.noted = time.Now()
				unnoted = append(unnoted, h)
			}
		case err == nil:
			delete(g.trusted, hash)
			g.end(hash, w, ErrRevoked)
		}
	}
	if g.under.timer != nil {
		g.under.timer.Reset(g.nextLook())
	}
	return unnoted
}

// endUnchecked ends the requests of those of whom it was not to be learned for too long whether they may go on.
func (g *Gate) endUnchecked() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for hash, w := range g.under.by {
		if time.Since(w.checked) >= uncheckedTime {
			g.end(hash, w, ErrUnchecked)
		}
	}
}

// noteTime is how often the use by what goes on for long is noted.
const noteTime = time.Minute

// nextLook is when to ask again: in time to end what could not be checked.
func (g *Gate) nextLook() time.Duration {
	pause := recheckPause
	for _, w := range g.under.by {
		if left := uncheckedTime - time.Since(w.checked); left > 0 {
			pause = min(pause, left+time.Millisecond)
		}
	}
	return pause
}

func (g *Gate) end(hash [sha256.Size]byte, w *watched, cause error) {
	for cancel := range w.ends {
		(*cancel)(cause)
	}
	delete(g.under.by, hash)
}
