package responder

// Held returns the bytes of requests at work.
func Held(r *Responder) int64 { return r.room.held.Load() }
