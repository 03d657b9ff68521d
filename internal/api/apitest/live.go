package apitest

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/live"
)

// Sse is a stream of events that was opened.
type Sse struct {
	*testing.T
	Lines *bufio.Scanner
	Close func()
	Last  string
}

// Follow opens a stream of events.
func (b *Bench) Follow(path string, header ...string) *Sse {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), longest)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.URL+api.Prefix+path, nil)
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	answer, err := http.DefaultClient.Do(req) //nolint:bodyclose // by close
	if err != nil {
		b.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "text/event-stream" {
		text, _ := io.ReadAll(answer.Body)
		b.Fatalf("%s: %d %s", path, answer.StatusCode, text)
	}
	s := &Sse{T: b.T, Lines: bufio.NewScanner(answer.Body), Close: func() { cancel(); _ = answer.Body.Close() }}
	b.Cleanup(s.Close)
	return s
}

// Next reads to the next event of a name.
func (s *Sse) Next(name string) string {
	s.Helper()
	event := ""
	for s.Lines.Scan() {
		field, value, _ := strings.Cut(s.Lines.Text(), ": ")
		switch {
		case field == "id":
			s.Last = value
		case field == "event":
			event = value
		case field == "data" && event == name:
			return value
		}
	}
	s.Fatalf("the stream ended before event %s: %v", name, s.Lines.Err())
	return ""
}

// Lead applies the changes of all steps together, as a page does, until they have led to where the items are.
func (s *Sse) Lead(want []byte) {
	s.Helper()
	for states := make([]byte, len(want)); !slices.Equal(states, want); {
		text := s.Next("delta")
		var delta live.Delta
		if err := json.Unmarshal([]byte(text), &delta); err != nil || delta.Step != "" || len(delta.Changes)%3 != 0 {
			s.Fatalf("delta %s: %v", text, err)
		}
		for change := range slices.Chunk(delta.Changes, 3) {
			if int(change[0]+change[1]) > len(states) {
				s.Fatalf("delta %s goes beyond %d items", text, len(states))
			}
			for o := change[0]; o < change[0]+change[1]; o++ {
				states[o] = byte(change[2])
			}
		}
	}
}

// Head asks and reads nothing of the answer but its head.
func (b *Bench) Head(path string, header ...string) (int, http.Header) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	answer := exchange(ctx, b, http.MethodGet, b.URL+path, nil, header...)
	_ = answer.Body.Close()
	return answer.StatusCode, answer.Header
}
