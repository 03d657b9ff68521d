package embedded

import (
	"fmt"
	"sync"

	"go.uber.org/zap"
)

// natsLog carries the server's log to ours, and keeps the first fatal line: the server says why it cannot start
// nowhere else.
type natsLog struct {
	to *zap.SugaredLogger

	mu    sync.Mutex
	first string
}

func (l *natsLog) fatal() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first
}

// Fatalf does not end the process.
func (l *natsLog) Fatalf(format string, v ...any) {
	l.mu.Lock()
	if l.first == "" {
		l.first = fmt.Sprintf(format, v...)
	}
	l.mu.Unlock()
	l.to.Errorf("nats: "+format, v...)
}

func (l *natsLog) Errorf(format string, v ...any)  { l.to.Warnf("nats: "+format, v...) }
func (l *natsLog) Warnf(format string, v ...any)   { l.to.Warnf("nats: "+format, v...) }
func (l *natsLog) Noticef(format string, v ...any) { l.to.Debugf("nats: "+format, v...) }
func (l *natsLog) Debugf(format string, v ...any)  { l.to.Debugf("nats: "+format, v...) }
func (l *natsLog) Tracef(format string, v ...any)  { l.to.Debugf("nats: "+format, v...) }
