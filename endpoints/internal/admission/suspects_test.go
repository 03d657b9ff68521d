package admission

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

// visit has a visitor enter, and returns where its stay comes once it is in.
func visit(t *testing.T, s *Suspects, root uuid.UUID, suspect bool) <-chan Stay {
	t.Helper()
	in, stop := make(chan Stay, 1), make(chan struct{})
	done := make(chan struct{})
	t.Cleanup(func() { close(stop); <-done })
	waits := func() bool {
		s.Mu.Lock()
		defer s.Mu.Unlock()
		return s.changed != nil
	}
	go func() {
		defer close(done)
		if stay, ok := s.Enter(root, suspect, stop); ok {
			in <- stay
		}
	}()
	eventually(t, "it is in, or waits", func() bool { return len(in) == 1 || waits() })
	return in
}

func TestSuspectsHaveTheProcessForThemselves(t *testing.T) {
	t.Parallel()
	s := NewSuspects()
	a, b, c := uuid.New(), uuid.New(), uuid.New()
	first := await(t, "first", visit(t, s, a, false))
	second := await(t, "second", visit(t, s, a, false))
	suspect := visit(t, s, b, true)
	later := visit(t, s, c, false)
	kin := await(t, "what the first may wait for", visit(t, s, a, false))
	first.End()
	kin.End()
	if len(suspect)+len(later) != 0 {
		t.Fatal("somebody was let in beside the second, or before the suspect")
	}
	second.End()
	alone := await(t, "suspect", suspect)
	if !alone.Alone || alone.Late || len(later) != 0 {
		t.Fatalf("the suspect is not alone: %+v", alone)
	}
	await(t, "what the suspect may wait for", visit(t, s, b, false)).End()
	alone.End()
	await(t, "who came later", later).End()
	if len(s.running)+len(s.alone)+s.count+len(s.Queue) != 0 {
		t.Errorf("something is left: %+v", s)
	}
}

func TestSuspectsDoNotWaitForEver(t *testing.T) {
	t.Parallel()
	s := NewSuspects()
	s.Patience = 50 * time.Millisecond
	busy := await(t, "first", visit(t, s, uuid.New(), false))
	suspect := await(t, "suspect", visit(t, s, uuid.New(), true))
	if suspect.Alone || !suspect.Late {
		t.Errorf("the suspect is %+v", suspect)
	}
	suspect.End()
	busy.End()
	alone := await(t, "suspect", visit(t, s, uuid.New(), true))
	if other := await(t, "other", visit(t, s, uuid.New(), false)); !other.Late {
		t.Errorf("the other is %+v", other)
	}
	if !alone.Alone {
		t.Errorf("the suspect is %+v", alone)
	}
}
