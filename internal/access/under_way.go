package access

import (
	"context"
	"crypto/sha256"
	"time"

	"go.uber.org/zap"
)

// underWay tracks the requests in progress by credential. The gate's lock guards it.
type underWay struct {
	by    map[[sha256.Size]byte]*watched
	timer *time.Timer // until the next check; nil while there are no requests
}

type watched struct {
	ends    map[*context.CancelCauseFunc]struct{}
	checked time.Time // last successful check
	noted   time.Time
}

// found records a successful check that began at a time.
func (w *watched) found(asked time.Time) {
	if asked.After(w.checked) {
		w.checked = asked
	}
}

// Admit returns the context of a request of p, which carries p and is cancelled when p may not continue. The caller
// calls done at the end of the request.
func (g *Gate) Admit(ctx context.Context, p Principal) (admitted context.Context, done func()) {
	if p.standing != nil {
		return watchCertificate(ctx, p)
	}
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
	if time.Since(w.checked) > uncheckedTime-recheckPause { // the next check may be too late
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

func (u *underWay) soon(g *Gate) {
	if u.timer != nil && u.timer.Stop() {
		u.timer = time.AfterFunc(0, g.recheck)
	}
}

// recheck checks all credentials with requests in progress, in one query, and ends the requests of invalid ones. A
// missing answer ends nothing that can still be rechecked before the deadline.
func (g *Gate) recheck() {
	hashes, until := g.watchedHashes()
	if len(hashes) == 0 {
		return
	}
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	asked := time.Now()
	standing, err := g.store.StandingCredentials(ctx, hashes, DefaultSessionIdle)
	if err != nil {
		g.log.Warn("whether tokens are still good cannot be found out", zap.Error(err))
		g.endUnchecked(until)
		return
	}
	unnoted := g.endOthers(hashes, standing, asked)
	if len(unnoted) > 0 { // an open page is a use
		ctx, cancel := context.WithTimeout(context.Background(), recheckTime)
		defer cancel()
		g.note(ctx, unnoted)
	}
}

// watchedHashes returns the credentials to check and the deadline of the answer: none continues longer than
// RevocationTime after its last successful check. Where that has passed, as after a stall of the process, the
// requests end.
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
		g.under.timer = nil // the next Admit sets one
	}
	return hashes, until
}

// endOthers applies the result, schedules the next check, and returns the credentials whose use must be recorded.
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

// endUnchecked ends the requests of credentials that could not be checked for too long, and schedules the next check.
// It waited for the answer until the deadline: if it is later now, the process was stalled, and it checks again.
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

// noteTime is the interval for recording the use by long requests.
const noteTime = time.Minute

// lookIn schedules the next check after a pause, but early enough for an answer before unchecked requests must end.
// The caller holds the lock.
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
