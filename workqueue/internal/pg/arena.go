package pg

// Arena keeps copies of bytes in few pieces of memory, which are used again. Most is how large a piece grows, but for
// one that holds a single larger copy.
type Arena struct {
	piece []byte
	Most  int
}

// Keep copies bytes. When the piece is full another takes its place, and what is in the old one stays there.
func (a *Arena) Keep(data []byte) []byte {
	if len(a.piece)+len(data) > cap(a.piece) {
		a.piece = make([]byte, 0, max(len(data), min(2*cap(a.piece), a.Most), a.Most/64))
	}
	at := len(a.piece)
	a.piece = append(a.piece, data...)
	return a.piece[at:len(a.piece):len(a.piece)]
}

// Empty gives up what was kept: the next copies take its place.
func (a *Arena) Empty() { a.piece = a.piece[:0] }
