package faultyservice

import (
	"sync"
	"time"
)

// outage knows when it is down.
type outage struct {
	Outage

	mu       sync.Mutex
	answered int
	over     chan struct{} // since it began: closed when it is over
	ended    bool
}

// down returns a channel that is closed at the end of the outage, nil when there is none now.
func (o *outage) down() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.ended || o.answered < o.After:
		return nil
	case o.over == nil:
		o.over = make(chan struct{})
		time.AfterFunc(o.For, func() {
			if o.Until != nil {
				<-o.Until
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			o.ended = true
			close(o.over)
		})
	}
	return o.over
}

func (o *outage) note(answered int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answered += answered
}
