package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// PrintLines copies a stream of JSON documents, as it is for JSON, a line for each document otherwise. Documents
// without a line are left out.
func PrintLines[T any](term *Console, stream io.Reader, line func(*T) string) error {
	if term.JSON {
		return CopyStream(term.Out, stream)
	}
	decoder := json.NewDecoder(stream)
	out := bufio.NewWriter(term.Out)
	for {
		var document T
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return out.Flush()
		}
		if err != nil {
			return errors.Join(BrokenOff(err), out.Flush())
		}
		text := line(&document)
		if text == "" {
			continue
		}
		if _, err := fmt.Fprintln(out, text); err != nil {
			return fmt.Errorf("write to standard output: %w", err)
		}
	}
}

// CopyStream passes on what the server sends.
func CopyStream(to io.Writer, from io.Reader) error {
	if _, err := io.Copy(to, from); err != nil {
		return BrokenOff(err)
	}
	return nil
}

// BrokenOff is that an export ended in its midst.
func BrokenOff(err error) error {
	return fmt.Errorf("the export broke off and is not whole; ask again: %w", err)
}
