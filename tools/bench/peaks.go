package main

import (
	"io/fs"
	"path/filepath"
	"time"
)

// peakTick is how often peaks that the kernel does not keep are looked at. A look costs well under a millisecond.
const peakTick = 200 * time.Millisecond

// peaks watches what a node uses.
type peaks struct {
	end  chan struct{}
	done chan struct{}

	anon  int64 // bytes; read after done
	store int64
}

// watchPeaks looks at a process's own memory and at the size of a directory until stop is called.
func watchPeaks(pid int, dir string) *peaks {
	p := &peaks{end: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(p.done)
		tick := time.NewTicker(peakTick)
		defer tick.Stop()
		for {
			p.anon = max(p.anon, statusBytes(pid, "RssAnon"))
			p.store = max(p.store, dirBytes(dir))
			select {
			case <-tick.C:
			case <-p.end:
				return
			}
		}
	}()
	return p
}

// stop returns the peaks.
func (p *peaks) stop() (anon, store int64) {
	close(p.end)
	<-p.done
	return p.anon, p.store
}

// dirBytes sums the sizes of the files that are there; they come and go under our eyes.
func dirBytes(dir string) (sum int64) {
	_ = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return nil //nolint:nilerr // what is gone has no size
		}
		if info, err := entry.Info(); err == nil {
			sum += info.Size()
		}
		return nil
	})
	return sum
}
