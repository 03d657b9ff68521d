package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// printLines copies a stream of JSON documents, as it is for JSON, a line for each document otherwise. Documents
// without a line are left out.
func printLines[T any](term *console, stream io.Reader, line func(*T) string) error {
	if term.json {
		return copyStream(term.out, stream)
	}
	decoder := json.NewDecoder(stream)
	out := bufio.NewWriter(term.out)
	for {
		var document T
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return out.Flush()
		}
		if err != nil {
			return errors.Join(brokenOff(err), out.Flush())
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

func copyStream(to io.Writer, from io.Reader) error {
	if _, err := io.Copy(to, from); err != nil {
		return brokenOff(err)
	}
	return nil
}

func brokenOff(err error) error {
	return fmt.Errorf("the export broke off and is not whole; ask again: %w", err)
}
