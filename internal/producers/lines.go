package producers

import (
	"errors"
	"io"
)

// lineCounter passes bytes on, and knows in which line each of them is.
type lineCounter struct {
	from  io.Reader
	read  int64
	lines int     // before counted
	ends  []int64 // of lines that were read, and are not counted yet
	err   error   // of the reader, but for its end
}

func (l *lineCounter) Read(p []byte) (int, error) {
	n, err := l.from.Read(p)
	for i, c := range p[:n] {
		if c == '\n' {
			l.ends = append(l.ends, l.read+int64(i))
		}
	}
	l.read += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		l.err = err
	}
	return n, err
}

// at returns the line of an offset, from 1. Offsets must not become smaller.
func (l *lineCounter) at(offset int64) int {
	counted := 0
	for counted < len(l.ends) && l.ends[counted] < offset {
		counted++
	}
	l.lines += counted
	l.ends = l.ends[counted:]
	return l.lines + 1
}
