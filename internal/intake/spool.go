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
	// DefaultSpoolBytes is how much of an input that cannot be read from front to back is kept in a file meanwhile.
	DefaultSpoolBytes = 4 << 30
	// inMemory is how much of an input is kept in memory instead.
	spoolMemory = 1 << 20
)

// Spool keeps inputs that must be read more than once, or not from front to back. The zero value keeps them in the
// system's directory for temporary files.
type Spool struct {
	Dir string // of its files; made when it is not there
	Max int64  // bytes of one input; 0: DefaultSpoolBytes
	// Room is what it shares with others that keep inputs on the same disk; nil: there is no bound but that of each.
	Room *Room
	// User is whose inputs they are, who may have half of the room; empty: there is no bound of each user.
	User string
}

// Kept is an input that was kept. Its file has no name: it is gone with the process, whatever becomes of that.
type Kept struct {
	Size   int64
	Digest [sha256.Size]byte // of what came in

	small []byte
	file  *os.File
	room  *Room
	user  string
	taken int64
	most  int64 // bytes that may be written; 0: whoever writes knows
}

// roomStep is how much room is taken at once.
const roomStep = 1 << 20

// Write adds to the file, as far as there is room.
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

// TooLargeError is returned for an input that is larger than may be kept.
type TooLargeError struct{ Max int64 }

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the input is larger than %s, which is what is kept of one at most; send it in parts",
		row.Size(int(e.Max)))
}

// Keep reads r to its end. The caller closes what it returns.
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

// Begin makes an empty file, for what is written to it. The caller closes what it returns.
func (s Spool) Begin() (*Kept, error) {
	file, err := s.create()
	if err != nil {
		return nil, err
	}
	s.Room.begin()
	return &Kept{room: s.Room, user: s.User, most: s.most(), file: file}, nil
}

func (s Spool) most() int64 { return cmp.Or(s.Max, DefaultSpoolBytes) }

// create makes a file and takes its name away at once.
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

// Close gives up what was kept.
func (k *Kept) Close() error {
	if k.file == nil {
		return nil
	}
	k.room.giveBack(k.taken, k.user)
	k.taken = 0
	return k.file.Close() //nolint:wrapcheck // names the file
}

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

// Share is what someone takes of the room who keeps something else than an input in a file. It is not safe for
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
		if err := s.room.take(roomStep, ""); err != nil {
			return err
		}
		s.taken += roomStep
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
