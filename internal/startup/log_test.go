package startup

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// A state that lasts for a quarter of an hour is a line a minute, what is different is said immediately, and each line
// names the node.
func TestAStateIsALine(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.InfoLevel)
	now := time.Now()
	node := ""
	log := zap.New(core, zap.WithClock(clock{&now}), Lines(func() string { return node })).Named("node")
	for i := range 1800 {
		log.Warn("look at the streams", zap.Error(fmt.Errorf("no answer after %d ms", i)))
		if i == 100 {
			node = "0190"
			log.Warn("look at the streams", zap.Error(errors.New("it has no leader")))
		}
		log.Info("one of many")
		now = now.Add(500 * time.Millisecond)
	}
	if n := logs.FilterMessage("look at the streams").Len(); n != 16 {
		t.Errorf("a state of 15 minutes is %d lines; want one a minute, and that of another error", n)
	}
	for _, name := range []string{"tax-2024", "tax-2025"} {
		log.With(zap.String("schedule", name)).Warn("it did not begin")
		log.Warn("it is held", zap.Stringer("run", bytes.NewBufferString(name)))
	}
	if n := logs.FilterMessage("it did not begin").Len() + logs.FilterMessage("it is held").Len(); n != 4 {
		t.Errorf("warnings about two schedules and two runs are %d lines", n)
	}
	if n := logs.FilterMessage("one of many").Len(); n != 1800 {
		t.Errorf("of 1800 lines that are no warnings %d are there", n)
	}
	if n := logs.FilterField(zap.String("node", "0190")).FilterMessage("one of many").Len(); n != 1699+1 {
		t.Errorf("%d lines name the node", n)
	}
}

type clock struct{ now *time.Time }

func (c clock) Now() time.Time                       { return *c.now }
func (clock) NewTicker(d time.Duration) *time.Ticker { return time.NewTicker(d) }
