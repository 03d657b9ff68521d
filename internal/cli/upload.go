package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// OpenItems opens the file of a flag, and tells its size when it has one.
func OpenItems(flag, name string, stdin io.Reader) (io.ReadCloser, int64, error) {
	if name == "-" {
		return io.NopCloser(stdin), 0, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, 0, &usageError{fmt.Sprintf("%s %s: %v", flag, name, errors.Unwrap(err))}
	}
	info, err := file.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s %s is a directory; name a file, or - for standard input", flag, name)
	}
	if err != nil {
		return nil, 0, errors.Join(&usageError{err.Error()}, file.Close())
	}
	return file, info.Size(), nil
}

// Upload tells a person how far the items have been sent.
type Upload struct {
	From  io.Reader
	Size  int64
	sent  int64
	shown time.Time
	Err   error
	Term  *Console
	Live  bool
}

// Read implements io.Reader.
func (u *Upload) Read(p []byte) (int, error) {
	n, err := u.From.Read(p)
	u.sent += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		u.Err = err
	}
	if u.Live && time.Since(u.shown) > 200*time.Millisecond {
		u.shown = time.Now()
		text := fmt.Sprintf("%.1f MB", float64(u.sent)/1e6)
		if u.Size > 0 {
			text = fmt.Sprintf("%3d%%  %s", u.sent*100/u.Size, text)
		}
		_, _ = fmt.Fprintf(u.Term.Err, "\r\x1b[Kloading  %s", text) // only for looks
	}
	return n, err
}

// End takes the progress away.
func (u *Upload) End() {
	if u.Live && !u.shown.IsZero() {
		_, _ = fmt.Fprint(u.Term.Err, "\r\x1b[K") // only for looks
	}
}
