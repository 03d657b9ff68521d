package intake

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/tranchehq/tranche/internal/intake/row"
)

// errLineTooLong comes with the first part of a line that is larger than the limit.
var errLineTooLong = errors.New("the line is too long")

// lineReader cuts its source into lines and counts them. A line never takes more memory than the limit and a buffer.
type lineReader struct {
	src    *bufio.Reader
	limit  int
	number int    // of the line that next returned last, from 1
	long   []byte // holds a line that is larger than the buffer of src
	ended  []byte // what the line ended with that next returned last, where it is whole; good as long as the line
	late   error  // that peek met; src gives it once only
}

// peek shows what comes, without taking it; whole: that is all there is.
func (l *lineReader) peek(n int) (sample []byte, whole bool) {
	sample, err := l.src.Peek(n)
	if err != nil && !errors.Is(err, io.EOF) {
		l.late = err
	}
	return sample, errors.Is(err, io.EOF)
}

// next returns a line without its "\n" or "\r\n". The bytes are good until the next call. After the last line it
// returns io.EOF.
func (l *lineReader) next() ([]byte, error) {
	if l.late != nil { // what came before it is buffered
		if rest, _ := l.src.Peek(l.src.Buffered()); bytes.IndexByte(rest, '\n') < 0 {
			return nil, readError(l.number, l.late)
		}
	}
	line, err := l.src.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		line, err = l.collect(line)
	}
	switch {
	case errors.Is(err, io.EOF) && len(line) == 0:
		return nil, io.EOF
	case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, errLineTooLong):
		return nil, readError(l.number, err)
	}
	l.number++
	if errors.Is(err, errLineTooLong) || len(line) > l.limit {
		return line[:min(len(line), l.limit)], errLineTooLong
	}
	trimmed := trimEnd(line)
	l.ended = line[len(trimmed):]
	return trimmed, nil
}

// collect joins the pieces of a line that did not fit in the buffer.
func (l *lineReader) collect(piece []byte) ([]byte, error) {
	l.long = append(l.long[:0], piece...)
	for {
		piece, err := l.src.ReadSlice('\n')
		l.long = append(l.long, piece...)
		switch {
		case len(l.long) > l.limit:
			return l.long, errLineTooLong
		case !errors.Is(err, bufio.ErrBufferFull):
			return l.long, err
		}
	}
}

// trimEnd takes the line break off. A "\r" counts as part of it, at the end of the input as well.
func trimEnd(line []byte) []byte {
	line = bytes.TrimSuffix(line, []byte("\n"))
	return bytes.TrimSuffix(line, []byte("\r"))
}

// readError tells where reading stopped. An InputError gets the line, any other error is the source's own.
func readError(line int, err error) error {
	if input, ok := errors.AsType[*row.InputError](err); ok {
		return &row.InputError{Line: line, Reason: input.Reason, Err: input.Err}
	}
	return fmt.Errorf("read the input after line %d: %w", line, err)
}
