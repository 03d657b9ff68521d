package gather

import (
	"slices"
	"time"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/endpoints"
)

// Limits of a step. A chunk is a mask of one block.
const (
	MaxChunk       = bitfield.Size
	MinChunkBytes  = 1 << 10
	MaxChunkBytes  = 64 << 20
	MinChunkTime   = 10 * time.Millisecond
	MaxChunkTime   = time.Hour
	MaxInFlight    = 10_000
	MinRate        = 0.001
	MaxRate        = 10_000_000
	MaxMaxAttempts = 100
	MaxTimeout     = 24 * time.Hour
	MinTimeout     = time.Millisecond

	maxCodes = 100
)

// validate checks the step, whose fields begin with prefix.
func (s *Step) validate(prefix string) error {
	if s.Endpoint == "" {
		return fieldError(prefix+"endpoint", "a step needs an endpoint")
	}
	if err := endpoints.ValidateName(s.Endpoint); err != nil {
		return fieldError(prefix+"endpoint", "%v", err)
	}
	if err := checkName(prefix+"name", s.Name, ""); err != nil {
		return err
	}
	if err := s.validateValues(prefix); err != nil {
		return err
	}
	return s.validateTogether(prefix)
}

// validateValues looks at each setting by itself.
func (s *Step) validateValues(prefix string) error {
	for _, n := range []struct {
		name            string
		value, min, max int
	}{
		{"chunk", s.Chunk, 1, MaxChunk},
		{"in_flight", s.InFlight, 1, MaxInFlight},
		{"max_attempts", s.MaxAttempts, 1, MaxMaxAttempts},
	} {
		if n.value < n.min || n.value > n.max {
			return fieldError(prefix+n.name, "%d is not within %d to %d", n.value, n.min, n.max)
		}
	}
	if s.ChunkBytes != 0 && (s.ChunkBytes < MinChunkBytes || s.ChunkBytes > MaxChunkBytes) {
		return fieldError(prefix+"chunk_bytes", "%v is not within %v to %v; 0 leaves it to the node", Bytes(s.ChunkBytes),
			Bytes(MinChunkBytes), Bytes(MaxChunkBytes))
	}
	if s.Rate != 0 && !(s.Rate >= MinRate && s.Rate <= MaxRate) { // so that NaN is refused
		return fieldError(prefix+"rate", "%g is not within %g to %d items a second; 0 is no limit", s.Rate, MinRate,
			MaxRate)
	}
	if err := s.validateTimes(prefix); err != nil {
		return err
	}
	if err := checkCodes(prefix+"retry_codes", s.RetryCodes); err != nil {
		return err
	}
	return checkCodes(prefix+"never_retry", s.NeverRetry)
}

func (s *Step) validateTimes(prefix string) error {
	for _, d := range []struct {
		name            string
		value, min, max time.Duration
	}{
		{"timeout", s.Timeout, MinTimeout, MaxTimeout},
		{"retry_backoff", s.RetryBackoff, 0, MaxTimeout},
		{"max_backoff", s.MaxBackoff, MinTimeout, MaxTimeout},
		{"chunk_time", s.ChunkTime, MinChunkTime, MaxChunkTime},
	} {
		if d.name == "chunk_time" && d.value == 0 {
			continue
		}
		if d.value < d.min || d.value > d.max {
			return fieldError(prefix+d.name, "%v is not within %v to %v", d.value, d.min, d.max)
		}
	}
	return nil
}

// validateTogether looks at settings that have to fit each other.
func (s *Step) validateTogether(prefix string) error {
	switch {
	case s.ChunkAuto && s.ChunkTime == 0:
		return fieldError(prefix+"chunk_time", "a chunk of auto needs a time to aim at, like %v", DefaultChunkTime)
	case !s.ChunkAuto && s.ChunkTime != 0:
		return fieldError(prefix+"chunk_time", "it goes with chunk: auto only, and the chunk is %d; leave one out", s.Chunk)
	case s.ChunkTime > s.Timeout:
		return fieldError(prefix+"chunk_time", "%v is longer than the timeout of a request, %v", s.ChunkTime, s.Timeout)
	case s.MaxBackoff < s.RetryBackoff:
		return fieldError(prefix+"max_backoff", "%v is shorter than the first wait, retry_backoff: %v", s.MaxBackoff,
			s.RetryBackoff)
	}
	for _, code := range s.NeverRetry {
		if slices.Contains(s.RetryCodes, code) {
			return fieldError(prefix+"never_retry", "%q stands in retry_codes as well; leave it in one of them", code)
		}
	}
	return nil
}

// checkCodes allows what endpoints allow as error codes, which is what is allowed in names, each once.
func checkCodes(field string, codes []string) error {
	if len(codes) > maxCodes {
		return fieldError(field, "%d codes; at most %d are allowed", len(codes), maxCodes)
	}
	for i, code := range codes {
		if err := checkName(field, code, "."); err != nil {
			return err
		}
		if slices.Contains(codes[:i], code) {
			return fieldError(field, "%q stands twice", code)
		}
	}
	return nil
}
