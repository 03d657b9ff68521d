package api

import (
	"math"
	"time"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/intake"
)

// LetStall has bodies continue for so long that are stalled.
func (s *Server) LetStall(d time.Duration) { s.core.Silence = d }

// LetWait has requests that read much wait so long for their turn.
func (s *Server) LetWait(d time.Duration) { s.core.Turn = d }

// MaxIdleEach is how many idle connections an address may have.
const MaxIdleEach = maxIdleEach

// HeaderTimeout is how long a connection may be without the head of its first request.
const HeaderTimeout = headerTimeout

// LetStrangers has so many requests of an address be in progress of which no one knows who makes them.
func (s *Server) LetStrangers(most int) {
	s.core.Unauthenticated = access.NewSlots(most, math.MaxInt)
}

// LetSpool has uploads take so many bytes of the disk.
func (s *Server) LetSpool(most int64) { s.runs.Spool = intake.NewRoom(most, nil) }
