package ingest

// Waiting returns how many adds of a collector wait for a commit that has not begun.
func Waiting(p *Producers, collector string) int {
	l := p.lane(collector)
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

// Held returns the bytes of adds that are in progress.
func Held(p *Producers) int64 { return p.room.held.Load() }

// Hold takes room.
func Hold(p *Producers, n int64) { p.room.held.Add(n) }

// Idle waits until no request is at work.
func Idle(r *Responder) { r.work.Wait() }
