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
	timer *time.Timer // to the next look; nil while nothing is in progress
}

// watched is the requests of one token or session.
type watched struct {
	ends    map[*context.CancelCauseFunc]struct{}
	checked time.Time // when it was last asked whether they may go on, and they might
	noted   time.Time
}

// found notes that they might go on when it was asked at a time.
func (w *watched) found(asked time.Time) {
	if asked.After(w.checked) {
		w.checked = asked
	}
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
	w.found(p.checked)
	w.ends[&cancel] = struct{}{}
	if g.under.timer == nil {
		g.under.timer = time.AfterFunc(recheckPause, g.recheck)
	}
	if time.Since(w.checked) > uncheckedTime-recheckPause { // the next look may be too late
		g.under.soon(g)
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

// recheck asks whether those whose requests are in progress may go on, all of them at once, and ends the requests of
// the others. An answer that does not come ends nothing that there is still time to ask for again.
func (g *Gate) recheck() {
	hashes, until := g.watchedHashes()
	if len(hashes) == 0 {
		return
	}
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	asked := time.Now()
	standing, err := g.store.StandingCredentials(ctx, hashes, g.config.SessionIdle)
	if err != nil {
		g.log.Warn("whether tokens are still good cannot be found out", zap.Error(err))
		g.endUnchecked(until)
		return
	}
	unnoted := g.endOthers(hashes, standing, asked)
	if len(unnoted) > 0 { // a page that is open is a use
		ctx, cancel := context.WithTimeout(context.Background(), recheckTime)
		defer cancel()
		g.note(ctx, unnoted)
	}
}

// watchedHashes returns of whom is to be asked, and until when the answer is worth waiting for: none of them goes on
// for longer than RevocationTime after they were last found good. For whom that is over already, as after a halt of
// this process, the requests end.
func (g *Gate) watchedHashes() (hashes [][]byte, until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	until = now.Add(recheckTime)
	for hash, w := range g.under.by {
		last := w.checked.Add(RevocationTime)
		if !last.After(now) {
			g.end(hash, w, ErrUnchecked)
			continue
		}
		hashes = append(hashes, hash[:])
		if last.Before(until) {
			until = last
		}
	}
	if len(hashes) == 0 {
		g.under.timer = nil // the next that is admitted sets one
	}
	return hashes, until
}

// endOthers applies what was learned, sets the next look, and returns those whose use is to be noted.
func (g *Gate) endOthers(asked, standing [][]byte, at time.Time) (unnoted [][]byte) {
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
		case good[hash]:
			w.found(at)
			if time.Since(w.noted) > noteTime {
				w.noted = time.Now()
				unnoted = append(unnoted, h)
			}
		default:
			delete(g.trusted, hash)
			g.end(hash, w, ErrRevoked)
		}
	}
	g.lookIn(recheckPause)
	return unnoted
}

// endUnchecked ends the requests of those of whom it was not to be learned for too long whether they may go on, and
// sets the next look. The answer was waited for until then: if it is later now, this process has was stalled, and looks
// again.
func (g *Gate) endUnchecked(until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := time.Now(); now.Before(until) {
		until = now
	}
	for hash, w := range g.under.by {
		if until.Sub(w.checked) >= uncheckedTime {
			g.end(hash, w, ErrUnchecked)
		}
	}
	g.lookIn(retryPause)
}

// noteTime is how often the use by what goes on for long is noted.
const noteTime = time.Minute

// lookIn sets when to ask again: after a pause, but in time for an answer before what could not be checked has to end.
// The lock is held.
func (g *Gate) lookIn(pause time.Duration) {
	if g.under.timer == nil {
		return
	}
	for _, w := range g.under.by {
		pause = min(pause, uncheckedTime-time.Since(w.checked))
	}
	g.under.timer.Reset(pause)
}

func (g *Gate) end(hash [sha256.Size]byte, w *watched, cause error) {
	for cancel := range w.ends {
		(*cancel)(cause)
	}
	delete(g.under.by, hash)
}
