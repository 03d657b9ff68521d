package main

import (
	"slices"
	"strings"
	"testing"
)

func TestPlainEnvDropsSettings(t *testing.T) {
	t.Parallel()
	got := plainEnv([]string{"PATH=/bin", "NATS_URL=nats://else", "TRANCHE_DATABASE=postgres://else", "HOME=/"})
	if want := []string{"PATH=/bin", "HOME=/"}; !slices.Equal(got, want) {
		t.Errorf("plainEnv = %q, want %q", got, want)
	}
}

func TestFirstDocumentWaitsForTheWhole(t *testing.T) {
	t.Parallel()
	d := &firstDocument{ready: make(chan struct{})}
	for _, piece := range []string{`{"api":`, `"x"`} {
		_, _ = d.Write([]byte(piece))
		select {
		case <-d.ready:
			t.Fatalf("told after %q", piece)
		default:
		}
	}
	_, _ = d.Write([]byte("}\n"))
	_, _ = d.Write([]byte("more"))
	<-d.ready
	if got := string(d.text()); got != "{\"api\":\"x\"}\n" {
		t.Errorf("text = %q", got)
	}
}

func TestLastBytesKeepsTheEnd(t *testing.T) {
	t.Parallel()
	var l lastBytes
	_, _ = l.Write([]byte(strings.Repeat("a", maxSaid)))
	_, _ = l.Write([]byte("end"))
	if got := l.String(); len(got) != maxSaid || !strings.HasSuffix(got, "aend") {
		t.Errorf("kept %d bytes, ending in %q", len(got), got[len(got)-4:])
	}
}
