package endpoints

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

// visit has a visitor enter, and returns where its stay comes once it is in.
func visit(t *testing.T, s *suspects, root uuid.UUID, suspect bool) <-chan stay {
	t.Helper()
	in, stop := make(chan stay, 1), make(chan struct{})
	done := make(chan struct{})
	t.Cleanup(func() { close(stop); <-done })
	waits := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.changed != nil
	}
	go func() {
		defer close(done)
		if stay, ok := s.enter(root, suspect, stop); ok {
			in <- stay
		}
	}()
	eventually(t, "it is in, or waits", func() bool { return len(in) == 1 || waits() })
	return in
}

func TestSuspectsHaveTheProcessForThemselves(t *testing.T) {
	t.Parallel()
	s := newSuspects()
	a, b, c := uuid.New(), uuid.New(), uuid.New()
	first := await(t, "first", visit(t, s, a, false))
	second := await(t, "second", visit(t, s, a, false))
	suspect := visit(t, s, b, true)
	later := visit(t, s, c, false)
	kin := await(t, "what the first may wait for", visit(t, s, a, false))
	first.end()
	kin.end()
	if len(suspect)+len(later) != 0 {
		t.Fatal("somebody was let in beside the second, or before the suspect")
	}
	second.end()
	alone := await(t, "suspect", suspect)
	if !alone.alone || alone.late || len(later) != 0 {
		t.Fatalf("the suspect is not alone: %+v", alone)
	}
	await(t, "what the suspect may wait for", visit(t, s, b, false)).end()
	alone.end()
	await(t, "who came later", later).end()
	if len(s.running)+len(s.alone)+s.count+len(s.queue) != 0 {
		t.Errorf("something is left: %+v", s)
	}
}

func TestSuspectsDoNotWaitForEver(t *testing.T) {
	t.Parallel()
	s := newSuspects()
	s.patience = 50 * time.Millisecond
	busy := await(t, "first", visit(t, s, uuid.New(), false))
	suspect := await(t, "suspect", visit(t, s, uuid.New(), true))
	if suspect.alone || !suspect.late {
		t.Errorf("the suspect is %+v", suspect)
	}
	suspect.end()
	busy.end()
	alone := await(t, "suspect", visit(t, s, uuid.New(), true))
	if other := await(t, "other", visit(t, s, uuid.New(), false)); !other.late {
		t.Errorf("the other is %+v", other)
	}
	if !alone.alone {
		t.Errorf("the suspect is %+v", alone)
	}
}
