package startup

import (
	"fmt"
	"slices"
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

	node  func() string // empty: it has no session yet
	seen  *seenLines
	about string // the fields of all its lines
}

// seenLines are the warnings of the last minute, without the numbers in their errors.
type seenLines struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// With implements zapcore.Core.
func (c *lineCore) With(fields []zapcore.Field) zapcore.Core {
	return &lineCore{c.Core.With(fields), c.node, c.seen, c.about + said(fields)}
}

// Check implements zapcore.Core.
func (c *lineCore) Check(entry zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Core.Check(entry, nil) == nil { // it samples
		return to
	}
	return to.AddCore(entry, c)
}

// Write implements zapcore.Core.
func (c *lineCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	if entry.Level >= zapcore.WarnLevel && c.seen.again(&entry, c.about+said(fields)) {
		return nil
	}
	if node := c.node(); node != "" {
		fields = append(slices.Clip(fields), zap.String("node", node))
	}
	return c.Core.Write(entry, fields)
}

// said is what fields say without numbers: of counts, of times, and within errors.
func said(fields []zapcore.Field) (all string) {
	for i := range fields {
		switch field := &fields[i]; field.Type {
		case zapcore.ErrorType:
			all += " " + strings.Map(func(r rune) rune {
				if unicode.IsDigit(r) {
					return -1
				}
				return r
			}, fmt.Sprint(field.Interface))
		case zapcore.StringType:
			all += " " + field.String
		case zapcore.StringerType, zapcore.ReflectType:
			all += " " + fmt.Sprint(field.Interface)
		case zapcore.BoolType:
			all += fmt.Sprint(" ", field.Integer)
		}
	}
	return all
}

// again reports whether a line like this was written within the last minute; else it is as of now.
func (s *seenLines) again(entry *zapcore.Entry, said string) bool {
	key := entry.LoggerName + " " + entry.Message + said
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
