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
	// sameLine is how long equal warnings are suppressed: a state is one line, not thousands.
	sameLine = time.Minute
	// maxLines limits the remembered warnings.
	maxLines = 1000
)

// TimeLayout is the time format of log lines: RFC 3339 with milliseconds.
const TimeLayout = "2006-01-02T15:04:05.000Z07:00"

// Lines makes a logger name its node, as `tranche nodes` does, and suppress repeated warnings.
func Lines(node func() string) zap.Option {
	return zap.WrapCore(func(to zapcore.Core) zapcore.Core {
		return &lineCore{Core: to, node: node, seen: &seenLines{last: map[string]time.Time{}}}
	})
}

type lineCore struct {
	zapcore.Core

	node  func() string // empty: no session yet
	seen  *seenLines
	about string // the fields of all its lines
}

type seenLines struct {
	mu   sync.Mutex
	last map[string]time.Time
}

func (c *lineCore) With(fields []zapcore.Field) zapcore.Core {
	return &lineCore{c.Core.With(fields), c.node, c.seen, c.about + said(fields)}
}

func (c *lineCore) Check(entry zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Core.Check(entry, nil) == nil { // it samples
		return to
	}
	return to.AddCore(entry, c)
}

func (c *lineCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	if entry.Level >= zapcore.WarnLevel && c.seen.again(&entry, c.about+said(fields)) {
		return nil
	}
	if node := c.node(); node != "" {
		fields = append(slices.Clip(fields), zap.String("node", node))
	}
	return c.Core.Write(entry, fields)
}

// said joins fields without numbers: counts, times, and digits in errors.
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
