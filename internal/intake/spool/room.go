package spool

import (
	"fmt"
	"sync"

	"github.com/tranchehq/tranche/internal/intake/row"
)

// Shares of the room for inputs that are kept in files.
const (
	freeShare = 2 // of what is free on the disk, one of so many parts: others write there, too
	userShare = 2 // of the room, for one user
)

// Room bounds the bytes of all inputs that are kept in files at once. It is safe for concurrent use.
type Room struct {
	most int64
	free func() (bytes int64, known bool)

	mu     sync.Mutex
	limit  int64 // as it was when the latest input began
	taken  int64
	byUser map[string]int64
}

// NewRoom returns room for so many bytes, or for half of what is free when an input begins where that is less. A
// nil function knows nothing of what is free.
func NewRoom(most int64, free func() (bytes int64, known bool)) *Room {
	return &Room{most: most, free: free, limit: most, byUser: map[string]int64{}}
}

// begin looks at what is free. What is taken counts as free: it will be.
func (r *Room) begin() {
	if r == nil || r.free == nil {
		return
	}
	free, known := r.free()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.limit = r.most; known {
		r.limit = min(r.most, (free+r.taken)/freeShare)
	}
}

// take takes room for n more bytes of a user, or none and returns a NoRoomError.
func (r *Room) take(n int64, user string) error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.taken+n > r.limit:
		return &NoRoomError{Most: r.limit}
	case user != "" && r.byUser[user]+n > r.limit/userShare:
		return &NoRoomError{Most: r.limit / userShare, User: user}
	}
	r.taken += n
	if user != "" {
		r.byUser[user] += n
	}
	return nil
}

func (r *Room) giveBack(n int64, user string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken -= n
	if r.byUser[user] -= n; r.byUser[user] <= 0 {
		delete(r.byUser, user)
	}
}

// Share is what somebody takes of the room who keeps something else than an input in a file. It is not safe for
// concurrent use.
type Share struct {
	room  *Room
	taken int64
}

// Share returns one that has nothing yet. A nil room has room for everything.
func (r *Room) Share() *Share {
	r.begin()
	return &Share{room: r}
}

// Fit has the share be so many bytes at least, or returns a NoRoomError.
func (s *Share) Fit(bytes int64) error {
	for bytes > s.taken {
		if err := s.room.take(step, ""); err != nil {
			return err
		}
		s.taken += step
	}
	return nil
}

// Close gives all of it back.
func (s *Share) Close() {
	s.room.giveBack(s.taken, "")
	s.taken = 0
}

// NoRoomError is returned while other inputs take the room on the disk.
type NoRoomError struct {
	Most int64
	User string // who has as much as one may have; empty: all together have
}

func (e *NoRoomError) Error() string {
	whose := "the inputs and workbooks that are kept on the node's disk while they are read or written"
	if e.User != "" {
		whose = "the inputs of " + e.User + " that are kept on the node's disk while they are read"
	}
	return fmt.Sprintf("%s take %s, which is as much as they may; try again a little later, in parts, or with CSV or "+
		"NDJSON, which are read and written as they come", whose, row.Size(int(e.Most)))
}
