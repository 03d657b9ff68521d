package intake

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/tranchehq/tranche/internal/intake/row"
)

const (
	// DefaultSpoolBytes limits an input that is kept in a file because it cannot be read sequentially.
	DefaultSpoolBytes = 4 << 30
	// spoolMemory is how much of an input is kept in memory instead.
	spoolMemory = 1 << 20
)

// Spool keeps inputs that must be read more than once or out of order. The zero value uses the system's directory
// for temporary files.
type Spool struct {
	Dir string // of its files; created if missing
	Max int64  // per input; 0: DefaultSpoolBytes
	// Room is the disk space shared with others that keep inputs on the same disk; nil: only the limit per input
	// applies.
	Room *Room
	// User owns the inputs and may use half of the room; empty: no limit per user.
	User string
}

// Kept is a kept input. Its file is unlinked on creation, so it disappears with the process, even after a crash.
type Kept struct {
	Size   int64
	Digest [sha256.Size]byte // of the input

	small []byte
	file  *os.File
	room  *Room
	user  string
	taken int64
	most  int64 // bytes that may be written; 0: the writer enforces it
}

const roomStep = 1 << 20

// Write appends to the file, within the limit and the room.
func (k *Kept) Write(p []byte) (int, error) {
	if k.most > 0 && k.Size+int64(len(p)) > k.most {
		return 0, &TooLargeError{k.most}
	}
	for k.Size+int64(len(p)) > k.taken {
		if err := k.room.take(roomStep, k.user); err != nil {
			return 0, err
		}
		k.taken += roomStep
	}
	n, err := k.file.Write(p)
	k.Size += int64(n)
	return n, err //nolint:wrapcheck // names the file
}

// TooLargeError is returned for an input above Spool.Max.
type TooLargeError struct{ Max int64 }

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the input is larger than %s, which is what is kept of one at most; send it in parts",
		row.Size(int(e.Max)))
}

// Keep reads r to its end. The caller closes the result.
func (s Spool) Keep(r io.Reader) (*Kept, error) {
	most := s.most()
	hash := sha256.New()
	limited := io.TeeReader(io.LimitReader(r, most+1), hash)
	var head bytes.Buffer
	n, err := io.CopyN(&head, limited, spoolMemory)
	kept := &Kept{room: s.Room, user: s.User}
	switch {
	case err == nil:
		if kept.file, err = s.create(); err == nil {
			s.Room.begin()
			_, err = io.Copy(kept, io.MultiReader(&head, limited))
		}
	case errors.Is(err, io.EOF):
		kept.small, kept.Size, err = head.Bytes(), n, nil
	}
	if err == nil && kept.Size > most {
		err = &TooLargeError{most}
	}
	if err != nil {
		return nil, errors.Join(err, kept.Close())
	}
	hash.Sum(kept.Digest[:0])
	return kept, nil
}

// Begin creates an empty file to write to. The caller closes it.
func (s Spool) Begin() (*Kept, error) {
	file, err := s.create()
	if err != nil {
		return nil, err
	}
	s.Room.begin()
	return &Kept{room: s.Room, user: s.User, most: s.most(), file: file}, nil
}

func (s Spool) most() int64 { return cmp.Or(s.Max, DefaultSpoolBytes) }

// create makes a file and unlinks it immediately.
func (s Spool) create() (*os.File, error) {
	if s.Dir != "" {
		if err := os.MkdirAll(s.Dir, 0o700); err != nil {
			return nil, fmt.Errorf("keep the input in a file: %w", err)
		}
	}
	file, err := os.CreateTemp(s.Dir, "tranche-input-")
	if err != nil {
		return nil, fmt.Errorf("keep the input in a file: %w", err)
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("keep the input in a file: %w", err), file.Close())
	}
	return file, nil
}

// ReadAt implements io.ReaderAt.
func (k *Kept) ReadAt(p []byte, off int64) (int, error) {
	if k.file != nil {
		return k.file.ReadAt(p, off) //nolint:wrapcheck // io.EOF stays what it is
	}
	return bytes.NewReader(k.small).ReadAt(p, off) //nolint:wrapcheck // as above
}

// Reader reads the input from its start.
func (k *Kept) Reader() io.Reader { return io.NewSectionReader(k, 0, k.Size) }

// Close releases the file and its room.
func (k *Kept) Close() error {
	if k.file == nil {
		return nil
	}
	k.room.giveBack(k.taken, k.user)
	k.taken = 0
	return k.file.Close() //nolint:wrapcheck // names the file
}

// Shares of the disk space for inputs in files.
const (
	freeShare = 2 // 1/N of the free disk space: others write there, too
	userShare = 2 // 1/N of the room, per user
)

// Room limits the total bytes of inputs kept in files. It is safe for concurrent use.
type Room struct {
	most int64
	free func() (bytes int64, known bool)

	mu     sync.Mutex
	limit  int64 // as of the start of the latest input
	taken  int64
	byUser map[string]int64
}

// NewRoom returns room for most bytes, or for half of the free space at the start of an input if that is less. With
// a nil function free space is unknown.
func NewRoom(most int64, free func() (bytes int64, known bool)) *Room {
	return &Room{most: most, free: free, limit: most, byUser: map[string]int64{}}
}

// begin measures the free space. What is already taken counts as free, because it will be.
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

// take reserves n more bytes for a user, or returns a NoRoomError and reserves none.
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

// Share is room reserved for a file that is not an input. It is not safe for concurrent use.
type Share struct {
	room  *Room
	taken int64
}

// Share returns an empty share. A nil room is unlimited.
func (r *Room) Share() *Share {
	r.begin()
	return &Share{room: r}
}

// Fit grows the share to at least the given bytes, or returns a NoRoomError.
func (s *Share) Fit(bytes int64) error {
	for bytes > s.taken {
		if err := s.room.take(roomStep, ""); err != nil {
			return err
		}
		s.taken += roomStep
	}
	return nil
}

// Close releases the whole share.
func (s *Share) Close() {
	s.room.giveBack(s.taken, "")
	s.taken = 0
}

// NoRoomError is returned while other inputs use the room on the disk.
type NoRoomError struct {
	Most int64
	User string // who is at the limit per user; empty: the total is used up
}

func (e *NoRoomError) Error() string {
	whose := "the inputs and workbooks that are kept on the node's disk while they are read or written"
	if e.User != "" {
		whose = "the inputs of " + e.User + " that are kept on the node's disk while they are read"
	}
	return fmt.Sprintf("%s take %s, which is as much as they may; try again a little later, in parts, or with CSV or "+
		"NDJSON, which are read and written as they come", whose, row.Size(int(e.Most)))
}
