package startup

import (
	"strings"
	"sync"
	"time"
	"unicode"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const (
	// sameLine is for how long a warning that is like one before is not logged again: a state is a line, not thousands.
	sameLine = time.Minute
	// maxLines bounds what is remembered of warnings.
	maxLines = 1000
)

// TimeLayout is how log lines say when: RFC 3339, to the millisecond.
const TimeLayout = "2006-01-02T15:04:05.000Z07:00"

// Lines makes a logger tell which node it is, as `tranche nodes` calls it, and not repeat warnings.
func Lines(node func() string) zap.Option {
	return zap.WrapCore(func(to zapcore.Core) zapcore.Core {
		return &lineCore{Core: to, node: node, seen: &seenLines{last: map[string]time.Time{}}}
	})
}

// lineCore is a log whose lines name the node.
type lineCore struct {
	zapcore.Core

	node func() string // empty: it has no session yet
	seen *seenLines
}

// seenLines are the warnings of the last minute, without the numbers in them.
type seenLines struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// With implements zapcore.Core.
func (c *lineCore) With(fields []zapcore.Field) zapcore.Core {
	return &lineCore{c.Core.With(fields), c.node, c.seen}
}

// Check implements zapcore.Core.
func (c *lineCore) Check(entry zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return to.AddCore(entry, c)
	}
	return to
}

// Write implements zapcore.Core.
func (c *lineCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	if entry.Level >= zapcore.WarnLevel && c.seen.again(&entry, fields) {
		return nil
	}
	if node := c.node(); node != "" {
		fields = append(fields[:len(fields):len(fields)], zap.String("node", node))
	}
	return c.Core.Write(entry, fields)
}

// again reports whether a line like this was written within the last minute; else it is as of now.
func (s *seenLines) again(entry *zapcore.Entry, fields []zapcore.Field) bool {
	key := entry.LoggerName + " " + entry.Message
	for i := range fields {
		if err, ok := fields[i].Interface.(error); ok && fields[i].Type == zapcore.ErrorType {
			key += " " + err.Error()
		} else if fields[i].Type == zapcore.StringType {
			key += " " + fields[i].String
		}
	}
	key = strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}, key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.last[key]; ok && entry.Time.Sub(last) < sameLine {
		return true
	}
	if len(s.last) >= maxLines {
		clear(s.last)
	}
	s.last[key] = entry.Time
	return false
}
